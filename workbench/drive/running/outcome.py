"""Makes the recorded `Trial` from the reply of a worker, or from the way in which the worker ended."""

from __future__ import annotations

import json
import re
import secrets
import sys
from dataclasses import replace
from pathlib import Path

from ...core import numbers
from ...core.candidate import Candidate
from ...core.command import baseline_command, candidate_command, fork_command, recipe_command
from ...core.env import cache_dir
from ...core.env import environment as environment_here
from ...core.layer import Workload
from ...core.replies import Baseline, Built, Device, Judged, ModuleJudged, Outcome
from ...core.template import Rendered
from ...core.toolchain import emulated as emulated_flags
from ...core.trial import DEFAULT_ADVICE, Status, Timing, Trial
from ...core.trial_parts import Detail, Environment
from ...core.typed import to_json
from ..sessions.session import Session, now
from .request import Row, Run
from .worker_process import GONE, WorkerDied, WorkerFailed, WorkerTimeout

_ROOT = Path(__file__).resolve().parents[3]
_KILLED = "signal 9 (SIGKILL)"
_OF_READ = "Test the index before this load, also for the first and the last taps."
_GONE_SENTENCE = "Its worker in the cluster was lost"
_KILLED_SENTENCE = "The process was killed from outside (signal 9)"
_FROM_OUTSIDE = (_KILLED, "signal 15 (SIGTERM)", "signal 1 (SIGHUP)", "signal 2 (SIGINT)", "signal 7 (SIGBUS)")


def failure(error: WorkerDied | WorkerFailed | WorkerTimeout, *, building: bool) -> Outcome:
    """The outcome for a worker that ended without a reply. Its detail has the last lines that the worker printed."""
    if isinstance(error, WorkerFailed):  # a defect of the workbench fails this trial, not the run
        first = str(error).strip().splitlines()[0]
        if error.machine:
            return _result(Status.MACHINE_FAILED, f"The operating system refused a request while {_while(building)}: {first}",
                           detail=Detail(log_tail=error.trace[-1200:]))
        return _result(Status.WORKER_DIED, f"The process failed while {_while(building)}: {first}",
                       advice="The kernel may be right. Report this as a defect of the workbench, with the trace from the "
                              "trial's record.",
                       detail=Detail(log_tail=error.trace[-1200:]))
    detail = Detail(log_tail=portable(error.log[-1200:]))
    if isinstance(error, WorkerTimeout):
        status = Status.BUILD_TIMEOUT if building else Status.RUN_TIMEOUT
        headline = (f"The compiler was stopped after {error.limit_s:g} s." if building
                    else f"Still running after {error.limit_s:g} s; the process was stopped.")
        return _result(status, headline, detail=detail)
    if "address-sanitizer" in error.log.lower() or "AddressSanitizer" in error.log:
        begin = error.log.find("ERROR: AddressSanitizer")   # the end of its report only explains the shadow memory
        return _result(Status.OUT_OF_BOUNDS, _sanitizer_line(error.log), advice=_OF_READ if _act(error.log) == "READ" else "",
                       detail=Detail(log_tail=portable(error.log[max(0, begin):][:1200])))
    if building and error.how in _FROM_OUTSIDE:
        short = ": out of memory?" if error.how == _KILLED else "."
        return _result(Status.MACHINE_FAILED, f"The build process was ended by {error.how}{short}", detail=detail)
    if error.how == GONE:
        return _result(Status.WORKER_DIED, f"{_GONE_SENTENCE} while {_while(building)}.", detail=detail)
    if error.how == _KILLED:
        return _result(Status.WORKER_DIED, f"{_KILLED_SENTENCE} while {_while(building)}.",
                       advice="If memory is short, use the small size. The next trial runs in a new process.", detail=detail)
    return _result(Status.WORKER_DIED, f"The process ended by {error.how} while {_while(building)}.", detail=detail)


def killed(result: Outcome) -> bool:
    """Whether the measuring process was killed by the system or a person, or lost with its machine."""
    return result.status == Status.WORKER_DIED and result.headline.startswith((_KILLED_SENTENCE, _GONE_SENTENCE))


def skipped(reason: str) -> Outcome:
    return _result(Status.SKIPPED, reason)


def too_large(needed: int, free: int, device: str) -> Outcome:
    """The outcome of a candidate whose tensors do not fit into memory. It is not built."""
    return _result(Status.OUT_OF_MEMORY, f"Not run: its tensors need {numbers.memory(needed)}, but only {numbers.memory(free)} "
                                         f"are free on {device}; choose a smaller size or batch.",
                   detail=Detail(shown={"needed_bytes": needed, "free_bytes": free}))


def render_failed(error: Exception) -> Outcome:
    return _result(Status.RENDER_FAILED, str(error), advice=getattr(error, "advice", ""))


# more than seven: all information about a judged candidate
def candidate_trial(session: Session, run: Run, row: Row, rendered: Rendered | None, build: Built | None,
                    result: Outcome, *, device: Device | None = None, workload: Workload | None = None,
                    environment: Environment | None = None) -> Trial:
    """Put source, log and samples into blobs and make the immutable trial of one candidate. A candidate that was not judged has
    an outcome, but no errors, times or memory. `device`, `workload`, `environment`: given if they differ from those of the run.
    """
    device, candidate, log = device or run.known_device, row.candidate, row.log_path
    workload = workload or run.request.workload
    judged = result if isinstance(result, Judged) else Judged(status=result.status, headline=result.headline,
                                                              advice=result.advice, detail=result.detail)
    emulated = device.kind == "cpu"
    blobs, trial_id, fork_of = {}, secrets.token_hex(6), candidate.variant.forked_from
    if rendered:
        blobs["source"] = session.put_blob(rendered.source.encode())
    if rendered or fork_of:
        blobs["template"] = session.put_blob(candidate.variant.text.encode())
    if log and log.is_file():
        blobs["log"] = session.put_blob(portable(log.read_text(errors="replace")).encode())
    blobs |= _sampled(session, judged)
    if judged.where:
        blobs["wrong"] = session.put_blob(to_json(judged.where).encode())
    alone = emulated_flags(candidate.compile_flags)
    return Trial(
        trial_id=trial_id, run_id=run.run_id, at=now(), kind="candidate", name=candidate.variant.name,
        direction=candidate.direction, precision=candidate.precision, workload=workload,
        device=device.recorded, status=judged.status, headline=judged.headline,
        advice=judged.advice or DEFAULT_ADVICE[judged.status],
        candidate_id=rendered.candidate_id if rendered else "", build_key=build.key if build else "",
        config=dict(candidate.config), form=candidate.form, compile_flags=candidate.compile_flags,
        errors=judged.errors, kernel_ms=_timing(judged.kernel_ms, blobs.get("samples", ""), session),
        memory=judged.memory, resources=build.resources if build else {}, build=build.recorded if build else None, blobs=blobs,
        environment=environment or environment_here(), detail=judged.detail,
        flags=tuple(dict.fromkeys([*judged.flags, *(["emulated"] if emulated else []),
                                   *(["nvcc_flags"] if emulated and alone != candidate.compile_flags else [])])),
        forked_from=fork_of, kept_in=str(session.path),
        command=fork_command(f"{session.name}:{trial_id}", _name(device), run.request.options) if fork_of else
        candidate_command(candidate, workload, _name(device), run.request.options))


def portable(log: str) -> str:
    """A log without private paths of this machine, because sessions are packed and shown on other machines."""
    private = re.compile(rf"{re.escape(str(cache_dir()))}/building/[^/\s]+/\w+/")
    log = private.sub("", log)
    for place, name in ((str(cache_dir()), "$KERNEL_WORKBENCH_CACHE"), (sys.prefix, "$PREFIX"), (str(_ROOT), "."),
                        (str(Path.home()), "~")):
        log = log.replace(place, name)
    return log


def baseline_trial(session: Session, run: Run, measured: Baseline) -> Trial:
    """The trial of one way of PyTorch in one direction."""
    blobs = _sampled(session, measured)
    return Trial(
        trial_id=secrets.token_hex(6), run_id=run.run_id, at=now(), kind="baseline", name=measured.name,
        direction=measured.direction, precision=measured.precision, workload=run.request.workload,
        device=run.known_device.recorded, status=measured.status, headline=measured.headline, advice=measured.advice,
        errors=measured.errors, kernel_ms=_timing(measured.kernel_ms, blobs.get("samples", ""), session), blobs=blobs,
        environment=environment_here(), flags=measured.flags, detail=measured.detail, kept_in=str(session.path),
        command=baseline_command(run.request.workload, _name(run.known_device), measured.direction, run.request.options))


def _sampled(session: Session, measured: Judged | Baseline) -> dict[str, str]:
    """The blobs of the samples and of the GPU's clock at each."""
    return {name: session.put_blob(json.dumps(values).encode())
            for name, values in (("samples", measured.samples), ("clocks", measured.clocks)) if values}


def module_trials(session: Session, run: Run, result: ModuleJudged, *, recipe: dict[str, Candidate], text: str) -> list[Trial]:
    """The trial of ModelNew, and those of the modes of nn.ConvTranspose from the same interleaved measurement."""
    emulated = ("emulated",) if run.known_device.kind == "cpu" else ()

    def trial(kind: str, name: str, precision: str, told: Outcome, module_ms: dict[str, Timing],
              samples: dict[str, tuple[float, ...]]) -> Trial:
        taken = {d: session.put_blob(json.dumps(ms).encode()) for d, ms in samples.items() if ms}
        return Trial(
            trial_id=secrets.token_hex(6), run_id=run.run_id, at=now(), kind=kind, name=name, direction="backward",
            precision=precision, workload=run.request.workload, device=run.known_device.recorded, status=told.status,
            headline=told.headline, advice=told.advice or DEFAULT_ADVICE[told.status],
            module_ms={k: timing for k, v in module_ms.items() if (timing := _timing(v, taken.get(k, ""), session))},
            environment=environment_here(), detail=told.detail, flags=emulated,
            command=recipe_command(list(recipe.values()), run.request.workload, _name(run.known_device), run.request.options))

    ours = replace(trial("module", "ModelNew", result.precision, result, result.module_ms, result.samples),
                   config={d: c.variant.name for d, c in recipe.items()}, errors=result.errors,
                   blobs={"source": session.put_blob(text.encode())},
                   flags=tuple(dict.fromkeys([*result.flags, *emulated])))
    right = Outcome(status=Status.OK, headline="nn.ConvTranspose, measured in the same run.")
    return [ours, *(trial("module_baseline", b.name, b.precision, right, b.module_ms, b.samples) for b in result.baselines)]


def _result(status: Status, headline: str, *, advice: str = "", detail: Detail | None = None) -> Outcome:
    return Outcome(status=status, headline=headline, advice=advice or DEFAULT_ADVICE[status], detail=detail or Detail())


def _timing(timing: Timing | None, samples: str, session: Session) -> Timing | None:
    return replace(timing, samples_blob=samples, samples_in=str(session.path)) if timing else None


def _while(building: bool) -> str:
    return "the compiler ran" if building else "the kernel ran"


def _name(device: Device) -> str:
    return "cpu" if device.kind == "cpu" else f"cuda:{device.index}"


def _act(log: str) -> str:
    """READ or WRITE, as AddressSanitizer reports it; "" if it does not."""
    found = re.search(r"(READ|WRITE) (?:of size|memory access)", log)
    return found[1] if found else ""


def _sanitizer_line(log: str) -> str:
    what = re.search(r"ERROR: AddressSanitizer: ([\w-]+)", log)
    size = re.search(r"(?:READ|WRITE) of size (\d+)", log)
    place = re.search(r"#\d+ .*? ((?:\w+/)?[\w.-]+\.cuh?:\d+)", log)   # the name of a fork has a hyphen
    where = f" at {place[1]}" if place else ""
    does = {"READ": "reads", "WRITE": "writes"}.get(_act(log))
    act = f"The kernel {does} {f'{size[1]} bytes ' if size else ''}outside a buffer" if does else "A memory error"
    return f"{act}{where} (AddressSanitizer: {what[1] if what else 'see the log'})."
