"""What the workers said -> the `Trial` that is recorded, deaths and time-outs included."""

from __future__ import annotations

import json
import re
import secrets
import sys
from pathlib import Path
from typing import Any

from ...core import compile_flags, numbers
from ...core.candidate import Candidate
from ...core.command import baseline_command, candidate_command, recipe_command
from ...core.env import cache_dir, environment
from ...core.template import Rendered
from ...core.trial import DEFAULT_ADVICE, Errors, Status, Timing, Trial
from ..sessions.session import Session, now
from .request import Run
from .worker_process import WorkerDied, WorkerFailed, WorkerTimeout

_ROOT = Path(__file__).resolve().parents[3]
_KILLED = "signal 9 (SIGKILL)"
_FROM_OUTSIDE = (_KILLED, "signal 15 (SIGTERM)", "signal 1 (SIGHUP)", "signal 2 (SIGINT)", "signal 7 (SIGBUS)")


def failure(error: WorkerDied | WorkerFailed | WorkerTimeout, *, building: bool) -> dict[str, Any]:
    """A worker's end as a result: status, headline, advice and the last lines it printed."""
    if isinstance(error, WorkerFailed):  # a defect of ours costs this trial, not the run
        first = str(error).strip().splitlines()[0]
        if error.machine:
            return _result(Status.MACHINE_FAILED, f"The machine refused something while {_while(building)}: {first}",
                           detail={"log_tail": error.trace[-1200:]})
        return _result(Status.WORKER_DIED, f"The process gave up while {_while(building)}: {first}",
                       advice="The kernel need not be at fault: report this with the trace that the trial records.",
                       detail={"log_tail": error.trace[-1200:]})
    detail = {"log_tail": portable(error.log[-1200:])}
    if isinstance(error, WorkerTimeout):
        status = Status.BUILD_TIMEOUT if building else Status.RUN_TIMEOUT
        headline = (f"The compiler was stopped after {error.limit_s:g} s." if building
                    else f"Still running after {error.limit_s:g} s; the process was stopped.")
        return _result(status, headline, detail=detail)
    if "address-sanitizer" in error.log.lower() or "AddressSanitizer" in error.log:
        return _result(Status.OUT_OF_BOUNDS, _sanitizer_line(error.log), detail=detail)
    if building and error.how in _FROM_OUTSIDE:
        short = ": out of memory?" if error.how == _KILLED else "."
        return _result(Status.MACHINE_FAILED, f"The process that builds was ended by {error.how}{short}", detail=detail)
    if error.how == _KILLED:
        return _result(Status.WORKER_DIED, f"The process was killed from outside (signal 9) while {_while(building)}.",
                       advice="If memory is short, use the small size; the next trial starts fresh.", detail=detail)
    return _result(Status.WORKER_DIED, f"The process ended by {error.how} while {_while(building)}.", detail=detail)


def skipped(reason: str) -> dict[str, Any]:
    return _result(Status.SKIPPED, reason)


def too_large(needed: int, free: int, device: str) -> dict[str, Any]:
    """Its tensors alone do not fit: nothing was built for it."""
    return _result(Status.OUT_OF_MEMORY, f"Not run: its tensors need {numbers.memory(needed)}, {numbers.memory(free)} are "
                   f"free on {device}; choose a smaller size or batch.", detail={"needed_bytes": needed, "free_bytes": free})


def render_failed(error: Exception) -> dict[str, Any]:
    return _result(Status.RENDER_FAILED, str(error), advice=getattr(error, "advice", ""))


def candidate_trial(session: Session, run: Run, device: dict[str, Any], candidate: Candidate, rendered: Rendered | None,
                    build: dict[str, Any], result: dict[str, Any], *, log: Path | None,
                    emulated: bool) -> Trial:
    """Put source, log and samples into blobs and make the immutable trial of one candidate."""
    blobs = {}
    if rendered:
        blobs["source"] = session.put_blob(rendered.source.encode())
        blobs["template"] = session.put_blob(candidate.variant.text.encode())
    if log and log.is_file():
        blobs["log"] = session.put_blob(portable(log.read_text(errors="replace")).encode())
    if result.get("samples"):
        blobs["samples"] = session.put_blob(json.dumps(result["samples"]).encode())
    status = Status(result["status"])
    alone = compile_flags.emulated(candidate.compile_flags)
    return Trial(
        trial_id=secrets.token_hex(6), run_id=run.run_id, at=now(), kind="candidate", name=candidate.variant.name,
        direction=candidate.direction, precision=candidate.precision, workload=run.request.workload.to_json(),
        device=_known(device), status=status, headline=result["headline"],
        advice=result.get("advice") or DEFAULT_ADVICE[status],
        candidate_id=rendered.candidate_id if rendered else "", build_key=build.get("key", ""),
        config=dict(candidate.config), form=candidate.form, compile_flags=candidate.compile_flags,
        errors=_errors(result), kernel_ms=_timing(result.get("kernel_ms"), blobs.get("samples", ""), session),
        memory=result.get("memory", {}), resources=build.get("resources") or {},
        build={k: build[k] for k in ("seconds", "cached", "compiler") if k in build}, blobs=blobs,
        environment=environment(), detail=result.get("detail", {}),
        flags=tuple(dict.fromkeys([*result.get("flags", []), *(["emulated"] if emulated else []),
                                   *(["nvcc_flags"] if emulated and alone != candidate.compile_flags else [])])),
        command=candidate_command(candidate, run.request.workload, _name(device), run.request.options))


def portable(log: str) -> str:
    """A log without this machine's private paths: sessions are packed and shown elsewhere."""
    private = re.compile(rf"{re.escape(str(cache_dir()))}/building/[^/\s]+/\w+/")
    log = private.sub("", log)
    for place, name in ((str(cache_dir()), "$KERNEL_WORKBENCH_CACHE"), (sys.prefix, "$PREFIX"), (str(_ROOT), "."),
                        (str(Path.home()), "~")):
        log = log.replace(place, name)
    return log


def baseline_trial(session: Session, run: Run, device: dict[str, Any], measured: dict[str, Any]) -> Trial:
    """One way PyTorch has of doing one direction."""
    blobs = {"samples": session.put_blob(json.dumps(measured["samples"]).encode())} if measured.get("samples") else {}
    status = Status(measured.get("status", "OK"))
    return Trial(
        trial_id=secrets.token_hex(6), run_id=run.run_id, at=now(), kind="baseline", name=measured["name"],
        direction=measured["direction"], precision=measured["precision"], workload=run.request.workload.to_json(),
        device=_known(device), status=status, headline=measured.get("headline", "PyTorch, measured in the same run."),
        advice=measured.get("advice", ""), errors=_errors(measured),
        kernel_ms=_timing(measured.get("kernel_ms"), blobs.get("samples", ""), session), blobs=blobs,
        environment=environment(), flags=tuple(measured.get("flags", ())), detail=measured.get("detail", {}),
        command=baseline_command(run.request.workload, _name(device), measured["direction"],
                                 run.request.options))


def module_trials(session: Session, run: Run, device: dict[str, Any], name: str, result: dict[str, Any], *,
                  recipe: dict[str, Candidate], text: str, emulated: bool) -> list[Trial]:
    """ModelNew and, from the same interleaved measurement, nn.ConvTranspose in each of its modes."""
    def trial(kind: str, name: str, data: dict[str, Any], **more: Any) -> Trial:
        status = Status(data.get("status", "OK"))
        taken = {d: session.put_blob(json.dumps(ms).encode()) for d, ms in (data.get("samples") or {}).items() if ms}
        return Trial(
            trial_id=secrets.token_hex(6), run_id=run.run_id, at=now(), kind=kind, name=name, direction="backward",
            precision=data.get("precision", ""), workload=run.request.workload.to_json(), device=_known(device), status=status,
            headline=data.get("headline", "nn.ConvTranspose, measured in the same run."),
            advice=data.get("advice") or DEFAULT_ADVICE[status], errors=_errors(data),
            module_ms={k: timing for k, v in data.get("module_ms", {}).items()
                       if (timing := _timing(v, taken.get(k, ""), session))},
            memory=data.get("memory", {}), environment=environment(), detail=data.get("detail", {}),
            flags=tuple(dict.fromkeys([*data.get("flags", []), *(["emulated"] if emulated else [])])),
            command=recipe_command(list(recipe.values()), run.request.workload, _name(device), run.request.options), **more)

    ours = trial("module", name, result, config={d: c.variant.name for d, c in recipe.items()},
                 blobs={"source": session.put_blob(text.encode())})
    return [ours, *(trial("module_baseline", b["name"], b) for b in result.get("baselines", []))]


def _result(status: Status, headline: str, *, advice: str = "", detail: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"status": str(status), "headline": headline, "advice": advice or DEFAULT_ADVICE[status],
            "detail": detail or {}}


def _timing(data: dict[str, Any] | None, samples: str, session: Session) -> Timing | None:
    return Timing(**{**data, "samples_blob": samples, "samples_in": str(session.path)}) if data else None


def _errors(result: dict[str, Any]) -> dict[str, Errors]:
    return {name: Errors(**{**e, "worst_index": tuple(e["worst_index"])})
            for name, e in (result.get("errors") or {}).items()}


def _while(building: bool) -> str:
    return "the compiler ran" if building else "the kernel ran"


def _known(device: dict[str, Any]) -> dict[str, Any]:
    return {k: device[k] for k in ("kind", "index", "name", "arch", "sm", "key") if k in device}


def _name(device: dict[str, Any]) -> str:
    return "cpu" if device.get("kind") == "cpu" else f"cuda:{device.get('index', 0)}"


def _sanitizer_line(log: str) -> str:
    what = re.search(r"ERROR: AddressSanitizer: ([\w-]+)", log)
    size = re.search(r"(READ|WRITE) of size (\d+)", log)
    place = re.search(r"#\d+ .*? ((?:\w+/)?[\w.]+\.cuh?:\d+)", log)
    where = f" at {place[1]}" if place else ""
    act = f"{size[1].capitalize()} {size[2]} bytes outside a buffer" if size else "A memory error"
    return f"{act}{where} (AddressSanitizer: {what[1] if what else 'see the log'})."
