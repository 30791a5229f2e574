"""The profile of a trial: the one in its session, else a new one by ncu, else a static analysis of the machine code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core import sass
from ...core.env import find_toolchain, gpus
from ...core.errors import BadRequest, RenderError
from ...core.profile import KernelCounters, Profile, rows, sentence, shown
from ...core.template import render
from ...core.trial import Status, Trial
from ...core.typed import Misfit, read, to_json
from ..machine.doctor import gpu_lacks
from ..reporting.main_kernel import arch_of, main_kernel, own_name
from ..reporting.tables import aligned
from ..running.runner import Runner
from .recorded import judged_candidate, machine_code_of
from .session import Session, now

EVENT = "profiled"          # event of a session that names a trial and the blob with its profile
LIMIT_S = 180.0
NO_NCU = "Nsight Compute (ncu) was not found on this machine; it is part of the CUDA toolkit."
Say = Callable[[str], None]


@dataclass(frozen=True)
class StaticReading:
    """The replacement for counters: the main kernel's machine code, or why it is not available."""

    kernel: sass.Kernel | None
    arch: str = ""
    why_not: str = ""

    @property
    def sentence(self) -> str:
        if self.kernel is None:
            return self.why_not
        return f"{sass.sentence(self.kernel)} ({len(self.kernel.code)} instructions of {self.kernel.name} for {self.arch}.)"


@dataclass(frozen=True)
class Reading:
    """The profile of a trial; or why there is none, with the static analysis. `note`: a further sentence."""

    trial: Trial
    session: Session
    profile: Profile | None
    why_not: str = ""
    static: StaticReading | None = None
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.session.name}:{self.trial.trial_id} {self.trial.name} {self.trial.direction}"

    @property
    def kernels(self) -> tuple[KernelCounters, ...]:
        return self.profile.kernels if self.profile else ()

    @property
    def sentence(self) -> str:
        """The reading in one sentence. If there are no counters, it gives the reason."""
        if self.profile:
            return sentence(self.profile.kernels)
        if self.static is None or self.static.kernel is None:
            return f"No counters: {self.why_not} No static analysis: {self.static.why_not if self.static else ''}".strip()
        return f"No counters: {self.why_not} A static analysis of the machine code is shown instead. {self.static.sentence}"

    def to_json(self) -> dict[str, Any]:
        static = {} if self.static is None else {"static": {
            "sentence": self.static.sentence, "arch": self.static.arch,
            "loops": sass.loop_rows(self.static.kernel) if self.static.kernel else []}}
        profile = json.loads(to_json(self.profile)) if self.profile else None
        return {"session": self.session.name, "trial": self.trial.trial_id, "name": self.trial.name,
                "direction": self.trial.direction, "device": self.trial.device.name, "sentence": self.sentence,
                "why_not": self.why_not, "profile": profile, **static}


def kept(trial: Trial, session: Session) -> Profile | None:
    """The newest profile of the trial in its session."""
    events = (event for event in reversed(session.events()) if event.get("trial") == trial.trial_id)
    return next((found for _, found in _profiles(events, session) if found.kernels), None)


def traffic_of(session: Session) -> dict[str, float]:
    """Trial -> the bytes that its kernels read from and wrote to the GPU's memory, for the trials with a profile."""
    found: dict[str, float] = {}
    for trial_id, profile in _profiles(session.events(), session):
        moved = [k.values.get(key) for k in profile.kernels for key in ("dram_read", "dram_written")]
        if moved and None not in moved:
            found[trial_id] = sum(value for value in moved if value is not None)
    return found


def _profiles(events: Iterable[Mapping[str, Any]], session: Session) -> Iterator[tuple[str, Profile]]:
    """The id of the trial and the profile of each of these events that has one that can be read."""
    for event in events:
        if event.get("event") != EVENT:
            continue
        try:
            found = read(Profile, json.loads(session.blob(str(event.get("blob")))))
        except (BadRequest, Misfit, ValueError):
            continue
        yield str(event.get("trial")), found


def place_of(trial: Trial) -> tuple[str, str]:
    """(the device of this machine on which the trial can be profiled, ""), or ("", why there is none). Raises `BadRequest` for
    a trial that is not a candidate."""
    if trial.kind != "candidate":
        raise BadRequest(f"{trial.name} is not a candidate, so it has no kernel of its own; name a trial of a kernel.",
                         field="trial")
    if trial.device.kind != "cuda":
        return "", "The trial ran on the emulator, which has no counters."
    same = [gpu.index for gpu in gpus() if re.sub(r"[^a-z0-9]+", "_", gpu.name.lower()).strip("_") == trial.device.key]
    if not same:
        return "", f"The trial ran on {trial.device.name}, which this machine does not have."
    if find_toolchain().ncu is None:
        return "", NO_NCU
    if lacks := gpu_lacks():
        return "", f"Kernels cannot run on the GPU of this machine. {lacks.name}: {lacks.works}. Install it: {lacks.command}"
    return f"cuda:{trial.device.index if trial.device.index in same else same[0]}", ""


def reading(trial: Trial, session: Session, runner: Runner, *, again: bool = False, limit_s: float = LIMIT_S,
            on_text: Say = lambda text: None) -> Reading:
    """The kept profile, unless `again`; else a new one, which is then kept; else the static analysis. `on_text` gets the name
    of the process for which it waits. Raises `BadRequest` for a trial that is not a candidate."""
    device, why_not = place_of(trial)
    if (found := kept(trial, session)) and not again:
        return Reading(trial, session, found)
    if device:
        made = counted(trial, session, runner, device, limit_s=limit_s, on_text=on_text)
        if made.profile:
            return made
        why_not = made.why_not
    if found:
        return Reading(trial, session, found, note=f"This is the kept profile. There is no new one: {why_not}")
    return Reading(trial, session, None, why_not, static(trial, session, runner))


def counted(trial: Trial, session: Session, runner: Runner, device: str, *, limit_s: float = LIMIT_S,
            on_text: Say = lambda text: None) -> Reading:
    """Have ncu count the trial's kernels on that device, and keep the counters. If that fails, `why_not` gives the reason."""
    ncu = find_toolchain().ncu
    if ncu is None:
        return Reading(trial, session, None, NO_NCU)
    try:
        item = render(judged_candidate(trial))
    except (BadRequest, RenderError) as error:
        return Reading(trial, session, None, str(error))
    told = runner.profile(item, trial.workload, device, ncu, limit_s=limit_s, on_text=on_text)
    if not told.kernels:
        return Reading(trial, session, None, told.why_not or "ncu counted no kernel of the launch.")
    profile = Profile(tuple(_main_first(told.kernels, trial)), now(), told.version)
    return Reading(trial, session, profile, note=_keep(profile, trial, session))


def static(trial: Trial, session: Session, runner: Runner) -> StaticReading:
    """The static analysis of the main kernel's machine code."""
    try:
        answer, kernels, arch = machine_code_of(trial, session, runner.machine_code)
    except (BadRequest, RenderError) as error:
        return StaticReading(None, why_not=str(error))
    if answer.status is not Status.OK or not kernels:
        return StaticReading(None, arch, answer.headline or f"{trial.name} has no kernel.")
    return StaticReading(kernels[0], arch)


def table(some: Sequence[Reading]) -> list[tuple[str, str, list[str]]]:
    """(label, help, a value for each) of the main kernels, side by side."""
    return rows([one.kernels[0] if one.kernels else None for one in some])


def text(found: Sequence[Reading]) -> str:
    """The sentences, then the tables."""
    parts = []
    for one in found:
        parts.append(f"{one.name}, {one.trial.device.name}\n{one.sentence}" + (f"\n{one.note}" if one.note else ""))
    if rows := table(found):
        names = [one.kernels[0].name if one.kernels else "–" for one in found]
        parts.append("\n".join(aligned([("main kernel", *names), *((label, *values) for label, _, values in rows)])))
    for one in found:
        if one.kernels[1:]:
            parts.append(f"Other kernels of {one.name}\n" + "\n".join(aligned(other_kernels(one))))
    kernels = [one.static.kernel for one in found if one.static and one.static.kernel]
    for one in found:
        if one.static and one.static.kernel and (loops := sass.loop_rows(one.static.kernel)):
            parts.append(f"Loops of {one.name}\n" + "\n".join(
                aligned([("loop", "depth", "source", "instructions", "their kinds"), *loops])))
    if len(kernels) == 2 and (differ := sass.differences(*kernels)):
        parts.append("\n".join(aligned([("loop", "kind", "first", "second"), *(tuple(map(str, row)) for row in differ)])))
    return "\n\n".join(parts)


def other_kernels(one: Reading) -> list[tuple[str, ...]]:
    """Head and rows of the kernels beside the main one."""
    keys = ("duration", "dram_read", "dram_written", "dram", "sm")
    return [("kernel", "duration", "DRAM read", "DRAM written", "DRAM, of peak", "SM, of peak"),
            *((k.name, *(shown(key, k.values.get(key)) for key in keys)) for k in one.kernels[1:])]


def _keep(profile: Profile, trial: Trial, session: Session) -> str:
    """Keep a profile as a blob of the session. Returns a sentence if that fails."""
    try:
        if session.path.suffix == ".zip":
            raise BadRequest(f"{session.name} is packed: open it with 'pack --open {session.path}' first.")
        session.event(EVENT, trial=trial.trial_id, blob=session.put_blob(to_json(profile).encode()))
    except (BadRequest, OSError) as error:
        return f"The profile was not kept. {error}"
    return ""


def _main_first(kernels: Sequence[KernelCounters], trial: Trial) -> list[KernelCounters]:
    """The main kernel, then the others by their time."""
    arch, wanted = arch_of(trial), own_name(trial.variant, trial.direction)
    main = main_kernel(trial, arch) if arch else ""
    return sorted(kernels, key=lambda k: (k.name != main, k.name.partition("<")[0] != wanted, -k.values.get("duration", 0.0)))
