"""Writes trials as text for a terminal, and compares two sessions."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...core import numbers
from ...core.errors import BadRequest
from ...core.presets import called
from ...core.trial import Status, Trial
from ...core.variants import find
from ...core.verdict import SAME, SLOWER, UNSURE, Verdict
from ..running import resume
from ..sessions.files import name_of
from ..sessions.session import Session
from . import report
from .main_kernel import arch_of, main_numbers
from .pairing import differences, fastest_right, matched, variant_of

UNJUDGED = (Status.NO_COMPILER, Status.MACHINE_FAILED)  # not regressions: the candidate could not be judged on B's machine
_COLUMNS = (("status", "status"), ("verdict", "verdict"), ("variant", "variant"), ("direction", "direction"),
            ("precision", "precision"), ("config", "config"), ("median_ms", "median, ms"), ("speedup", "vs PyTorch"),
            ("of_limit", "of limit"), ("rel_l2", "rel. L2"), ("registers", "regs"), ("build_s", "build, s"),
            ("trial_id", "trial"))


@dataclass(frozen=True)
class Row:
    """One pair of `pairing.matched`, of PyTorch or of a candidate. `ratio` is A / B (above 1: B is faster); None if one of the
    two is not right or the devices differ. `gone`: it is the fastest right config in A of a variant without a trial in B."""

    workload: str
    direction: str
    kind: str
    variant: str
    precision: str
    config: dict[str, int | str]
    config_b: dict[str, int | str]
    status_a: str
    status_b: str
    a_ms: float | None
    b_ms: float | None
    ratio: float | None
    low: float | None
    high: float | None
    verdict: str
    why: str
    differ: str
    gone: bool


def text_table(trials: Iterable[Trial], *, not_run: int = 0) -> str:
    """Trials as text: first the verdict, then one line for each trial. Below are the reasons of skipped trials, and the
    failures with their sentence, advice and command, except those that were run again and judged. `not_run`: the number of
    requested candidates without a trial."""
    trials = list(trials)
    if not trials:
        return "No trials."
    layers = {trial.trial_id: called(trial.workload) for trial in trials}
    configs, several = _configs(trials), len(set(layers.values())) > 1
    columns = (*((("layer", "layer"),) if several else ()), *_COLUMNS)
    rows = [row | {"layer": layers[row["trial_id"]], "config": configs[row["trial_id"]]}
            for row in report.frame(trials).to_dict("records")]
    order = {layer: number for number, layer in enumerate(layers.values())}
    cells = [[title for _, title in columns]]
    cells += [[_cell(name, row[name]) for name, _ in columns] for row in sorted(rows, key=lambda row: order[row["layer"]])]
    lines = []
    standing = resume.standing(trials)
    found = report.headline(standing)
    if found:
        lines += [f"{found.badge}  {found.sentence}{f', {not_run} not run' if not_run else ''}", found.evidence, ""]
    elif not_run:
        lines += [f"{not_run} candidates were not run", ""]
    lines += aligned(cells)
    skipped = [trial for trial in standing if trial.status is Status.SKIPPED]
    lines += [""] * bool(skipped) + [f"{t.status}  {t.name} {t.direction} ({t.trial_id}): {t.headline}" for t in skipped]
    for trial in standing:
        if not trial.ok and trial.status is not Status.SKIPPED:
            where = trial.detail.shown.get("where", "")
            lines += ["", f"{trial.status}  {trial.name} {trial.direction} ({trial.trial_id}): {trial.headline}",
                      *([f"  {where}"] if where else []), f"  {trial.advice}", f"  {trial.command}"]
    return "\n".join(lines)


def trial_rows(trial: Trial) -> list[tuple[str, str]]:
    """What a person asks first about one trial, as (name, value): layer, config, time, errors, and the command that repeats
    it."""
    rows = [("layer", called(trial.workload)), ("direction", f"{trial.direction}, {trial.precision}"),
            ("config", " ".join(f"{k}={v}" for k, v in trial.config.items()) or numbers.MISSING)]
    if trial.ok and trial.kernel_ms:
        emulated = " on the CPU emulator, which does not predict a GPU" if report.is_emulated(trial) else ""
        rows.append(("median", f"{numbers.time(trial.kernel_ms.median_ms)}{emulated}"))
    rows += [(f"error of {name}", f"{numbers.count(e.wrong)} of {numbers.count(e.count)} are NaN, infinite or not written"
              if e.without_distance else f"{numbers.error(e.rel_l2)} relative L2, {numbers.error(e.allowed)} allowed, "
              f"{numbers.count(e.wrong)} of {numbers.count(e.count)} wrong") for name, e in trial.errors.items()]
    return [*rows, ("command", trial.command)]


def trial_text(trial: Trial) -> str:
    """One trial for a terminal: the verdict first, then `trial_rows`, where it ran and what its kernels use."""
    advice = [] if trial.ok or not trial.advice else [f"  {trial.advice}"]
    *rows, command = trial_rows(trial)
    rows.append(("ran on", f"{trial.device.name}, {trial.at[:16].replace('T', ' ')} UTC"))
    if kernel := main_numbers(trial):
        rows.append((f"main kernel, {arch_of(trial)}", f"{kernel.registers} registers per thread, "
                     f"{kernel.spill_store_bytes + kernel.spill_load_bytes} bytes spilled"))
    rows += [(name.removesuffix("_bytes"), numbers.memory(value)) for name, value in trial.memory.items()]
    ids = [(name, value) for name, value in (("candidate id", trial.candidate_id), ("forked from", trial.forked_from)) if value]
    return "\n".join([f"{trial.status}  {trial.name}: {trial.headline}", *advice, "", *aligned([*rows, *ids, command])])


def session_records(sessions: Iterable[Session]) -> list[dict[str, Any]]:
    """The sessions as plain values: start (UTC), devices, layers, number of trials, and how many of them are right."""
    found = []
    for session in sessions:
        trials = session.trials()
        found.append({"session": session.name, "at": min((t.at for t in trials), default=""),
                      "devices": list(dict.fromkeys(t.device.name for t in trials)),
                      "layers": list(dict.fromkeys(called(t.workload) for t in trials)),
                      "trials": len(trials), "right": sum(t.ok for t in trials)})
    return found


def sessions_text(records: Sequence[dict[str, Any]]) -> str:
    """`session_records` as a table."""
    cells = [["session", "began, UTC", "device", "layers", "trials", "right"]]
    cells += [[r["session"], r["at"][:16].replace("T", " ") or numbers.MISSING, _first_of(r["devices"]), _first_of(r["layers"]),
               str(r["trials"]), str(r["right"])] for r in records]
    return "\n".join(aligned(cells))


def _first_of(names: Sequence[str]) -> str:
    return f"{names[0]}{f' +{len(names) - 1}' if names[1:] else ''}" if names else numbers.MISSING


def compare_sessions(before: Iterable[Trial], after: Iterable[Trial]) -> list[Row]:
    """One row for each pair."""
    before, after = ([t for t in trials if t.kind in ("candidate", "baseline")] for trials in (before, after))
    there = {variant_of(t) for t in after}
    pairs = matched(before, after)
    gone: dict[tuple[str, ...], list[Trial]] = {}
    for left, _ in pairs:
        if left and left.kind == "candidate" and variant_of(left) not in there:
            gone.setdefault(variant_of(left), []).append(left)
    lost = {t.trial_id for some in gone.values() if (t := fastest_right(some))}
    rows = []
    for left, right in pairs:
        some = left or right
        assert some is not None
        ratio = _ratio(left, right)
        differ = differences(left, right) if left and right else ""
        rows.append(Row(
            workload=some.workload.preset or str(some.workload.layer), direction=some.direction, kind=some.kind,
            variant=some.name, precision=some.precision, config=some.config, config_b=right.config if right else {},
            status_a=str(left.status) if left else "", status_b=str(right.status) if right else "",
            a_ms=left.kernel_ms.median_ms if left and left.kernel_ms else None,
            b_ms=right.kernel_ms.median_ms if right and right.kernel_ms else None,
            ratio=ratio.value if ratio else None, low=ratio.low if ratio else None,
            high=ratio.high if ratio else None, verdict=ratio.verdict if ratio else "",
            why="; ".join(filter(None, ("" if ratio else _why_not(left, right), differ))), differ=differ,
            gone=left is not None and left.trial_id in lost))
    return rows


_NEEDS_A_LOOK = (SLOWER, UNSURE, "", report.FASTER, SAME, report.EMULATED)


def in_order(pairs: Iterable[report.Pair], *, baselines_last: bool = True) -> list[report.Pair]:
    """The pairs in the order of importance: SLOWER and UNSURE first, PyTorch's own pairs last unless they were chosen."""
    return sorted(pairs, key=lambda p: (baselines_last and report.is_baseline(p.a), _NEEDS_A_LOOK.index(p.verdict),
                                        -p.ratio.value if p.ratio else 0))


def counted(pairs: Sequence[report.Pair]) -> tuple[str, str]:
    """(the most frequent verdict, "A is faster in 3 of 4, slower in 1, ...") of at least one pair."""
    count = {v: sum(p.verdict == v for p in pairs) for v in _NEEDS_A_LOOK if v}
    compared = sum(n for v, n in count.items() if v != report.EMULATED)
    if not compared:
        apart = all(p.a.device.key != p.b.device.key for p in pairs)
        said = "they ran on different devices, so their times are not compared" if apart else "no two times can be compared"
        return (report.EMULATED if count[report.EMULATED] else "NOTE",
                f"{len(pairs)} pair{'' if len(pairs) == 1 else 's'} of trials, but {said}")
    return (max((report.FASTER, SLOWER, SAME, UNSURE), key=lambda v: count[v]),
            f"A is faster in {count[report.FASTER]} of {compared}, slower in {count[SLOWER]}, the same in {count[SAME]}, "
            f"unsure in {count[UNSURE]}")


def pair_records(pairs: Iterable[report.Pair]) -> list[dict[str, Any]]:
    """Pairs as plain values, for a table, CSV, JSON or a report. `ratio` is B / A: above 1, A is faster. Times in ms."""
    found = []
    for pair in pairs:
        ours, theirs = (report.timing_of(t, pair.clock, pair.direction) for t in (pair.a, pair.b))
        ratio = pair.ratio
        found.append({
            "verdict": pair.verdict or None, "layer": called(pair.a.workload), "direction": pair.direction,
            "ratio": ratio.value if ratio else None, "low": ratio.low if ratio else None, "high": ratio.high if ratio else None,
            "clock": pair.clock, "a": pair.a.name, "a_precision": pair.a.precision, "a_status": str(pair.a.status),
            "a_ms": ours.median_ms if ours else None, "a_config": " ".join(f"{k}={v}" for k, v in pair.a.config.items()),
            "b": pair.b.name, "b_precision": pair.b.precision, "b_status": str(pair.b.status),
            "b_ms": theirs.median_ms if theirs else None, "b_config": " ".join(f"{k}={v}" for k, v in pair.b.config.items()),
            "floor_ms": report.floor_ms(pair.a) if pair.clock == "kernel_ms" and not report.is_emulated(pair.a) else None,
            "note": pair.note, "a_device": pair.a.device.name, "b_device": pair.b.device.name,
            "a_session": _session(pair.a), "b_session": _session(pair.b), "a_trial": pair.a.trial_id,
            "b_trial": pair.b.trial_id})
    return found


def csv_text(records: Sequence[dict[str, Any]]) -> str:
    """Records as CSV with a header; a config is written as NAME=VALUE. "" without records."""
    out = io.StringIO()
    if records:
        writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: " ".join(f"{a}={b}" for a, b in v.items()) if isinstance(v, dict) else v for k, v in r.items()}
                         for r in records)
    return out.getvalue()


def _session(trial: Trial) -> str:
    return name_of(Path(trial.kept_in)) if trial.kept_in else ""


def regressions(rows: Sequence[Row]) -> list[str]:
    """One sentence for each candidate that is worse in B than in A: no longer right, missing, or SLOWER. One sentence if B has
    no trials. A slower PyTorch baseline is not a regression."""
    if not any(row.status_b for row in rows):
        return ["B has no trials, so it cannot be compared with A."]
    found = []
    for row in rows:
        what = f"{row.variant} {row.direction} on {row.workload}"
        differ = f" ({row.differ})" if row.differ else ""
        if row.gone:
            found.append(f"{what} was OK in A and is missing in B.")
        elif row.status_a == "OK" and row.status_b not in ("OK", "", *UNJUDGED):
            found.append(f"{what} was OK in A and is {row.status_b} in B{differ}.")
        elif row.verdict == SLOWER and row.kind == "candidate":
            found.append(f"{what} is slower in B: it is {numbers.ratio(row.ratio)} as fast as in A, 95 % interval "
                         f"{numbers.interval(row.low, row.high, row.ratio)}{differ}.")
    return found


def unjudged(rows: Sequence[Row]) -> list[str]:
    """One sentence for each candidate that was right in A and that B's machine could not judge."""
    return [f"{row.variant} {row.direction} on {row.workload} was OK in A and could not be judged in B "
            f"({row.status_b}); resume the run of B."
            for row in rows if row.status_a == "OK" and row.status_b in UNJUDGED]


def compare_text(rows: Sequence[Row]) -> str:
    """The rows of `compare_sessions` as a table. A / B is how many times as fast B is."""
    if not rows:
        return "The sessions have no trials."
    cells = [["workload", "direction", "variant", "A, ms", "B, ms", "A / B", "interval", "verdict", ""]]
    cells += [[r.workload, r.direction, r.variant, numbers.milliseconds(r.a_ms), numbers.milliseconds(r.b_ms),
               numbers.ratio(r.ratio), numbers.interval(r.low, r.high, r.ratio), r.verdict, r.why] for r in rows]
    return "\n".join(aligned(cells))


def _ratio(left: Trial | None, right: Trial | None) -> Verdict | None:
    if not left or not right or not left.ok or not right.ok or not left.kernel_ms or not right.kernel_ms:
        return None
    if left.device.key != right.device.key or report.is_emulated(left) or report.is_emulated(right):
        return None
    return report.ratio_of(right.kernel_ms, left.kernel_ms)


def _why_not(left: Trial | None, right: Trial | None) -> str:
    if not left or not right:
        return "only in B" if right else "only in A"
    for name, trial in (("A", left), ("B", right)):
        if not trial.ok:
            return f"{trial.status} in {name}"
    if left.device.key != right.device.key:
        return "different devices"
    return "not timed" if not left.kernel_ms or not right.kernel_ms else "emulated times: no verdict"


def _configs(trials: Sequence[Trial]) -> dict[str, str]:
    """For each trial, the tunables that differ from the variant's default or between the variant's trials in this table. All
    tunables if the template no longer exists. With all tunables the table would often be wider than a terminal."""
    values: dict[tuple[str, ...], dict[str, set[int | str]]] = {}
    for trial in trials:
        for name, value in trial.config.items():
            values.setdefault((trial.name, trial.direction, *trial.place), {}).setdefault(name, set()).add(value)

    @cache
    def usual(variant: str, direction: str, memory_format: str) -> dict[str, int]:
        try:
            return find(variant, direction).default_for(memory_format)
        except BadRequest:
            return {}

    def told(trial: Trial) -> str:
        there = values[trial.name, trial.direction, *trial.place]
        default = usual(trial.name, trial.direction, trial.workload.memory_format)
        return " ".join(f"{name}={value}" for name, value in trial.config.items()
                        if len(there[name]) > 1 or default.get(name) != value) or "default"

    return {trial.trial_id: told(trial) if trial.config else "" for trial in trials}


def _cell(name: str, value: Any) -> str:
    if value is None or value == "" or value != value:  # NaN: pandas' missing number
        return numbers.MISSING
    match name:
        case "median_ms":
            return numbers.milliseconds(float(value))
        case "speedup":
            return numbers.ratio(float(value))
        case "of_limit":
            return f"{value:.0f} %"
        case "rel_l2":
            return numbers.error(float(value))
        case "build_s":
            return f"{value:.1f}"
        case "registers":
            return f"{value:.0f}"
    return str(value)


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines with every column as wide as its widest cell."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in cells]
