"""Writes a `CheckReport` as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ...core import numbers
from ...core.answers import NOT_ASKED, Answer, CheckReport, Question
from ...core.check_parts import DirectionTimes, SmallestCase
from ..reporting.tables import aligned
from .check_times import floor_text, sentence, without_times

_MARKS = {Answer.FAILED: "x", Answer.SKIPPED: "-", Answer.WARNED: "!", Answer.PASSED: "+", Answer.NOTE: "i"}
_WIDTH = 118


def report_text(report: CheckReport) -> str:
    """The report as text: first the verdict, then the failed questions with what explains them, then the other questions."""
    lines = [f"{report.badge}  {report.headline}", *_wrapped(report.evidence, "  ")]
    lines.append("")
    explained = [*(smallest_lines(report.smallest) if report.smallest else []), *_mistake(report)]
    for q, *alike in report.rows:
        if q.answer is not Answer.FAILED and explained:
            lines, explained = [*lines, *explained, ""], []
        status = f" [{q.status}]" if q.status and q.answer is Answer.FAILED else ""
        asked = f"{1 + len(alike)} questions" if alike else q.question
        lines.append(f"{_MARKS[q.answer]} {q.answer:<8}{asked}{status}")
        lines += _wrapped(q.seen, "            ")
        lines += _wrapped(" ".join(one.question for one in (q, *alike)), "            ") if alike else []
        if q.advice and q.answer in (Answer.FAILED, Answer.WARNED, Answer.SKIPPED):
            lines += _wrapped(f"-> {q.advice}", "            ")
        if q.answer is Answer.FAILED and q.detail.log_path:
            lines.append(f"            its log: {q.detail.log_path}")
    lines += [*explained, *_kernelbench(report), *_times(report), "", *_wrapped(_not_asked(report), "")]
    lines.append(f"against {report.against}")
    where = f"on {report.device}, seed {report.seed}, {report.seconds:.0f} s"
    lines.append(f"{where}; {report.confined.sentence}")
    return "\n".join(lines)


def advice_lines(q: Question) -> list[str]:
    """What to do, below the line of a failed question."""
    return _wrapped(f"-> {q.advice}", "            ") if q.answer is Answer.FAILED and q.advice else []


def answer_line(q: Question) -> str:
    """One answer in one line. For a failed question the line also has what was seen."""
    seen = f"  {q.seen}" if q.answer is Answer.FAILED else ""
    line = f"{_MARKS[q.answer]} {q.answer:<8}{q.question}{seen}"
    return line if len(line) <= _WIDTH else f"{line[:_WIDTH - 4]} ..."


def log_text(report: CheckReport) -> str:
    """The logs of the failed questions, each below its question; "" if there are none."""
    return "\n".join(f"\nThe log of: {q.question}\n{textwrap.indent(q.detail.log.rstrip(), '  | ', lambda line: True)}"
                     for q in report.ordered if q.answer is Answer.FAILED and q.detail.log)


def not_asked_text(report: CheckReport) -> str:
    """What the check did not test, each in a line of its own."""
    return "\n".join(["\nNot asked:", *(f"  - {one}" for one in report.not_asked)])


def _not_asked(report: CheckReport) -> str:
    """One sentence. What only this report leaves out is named."""
    own = [one for one in report.not_asked if one not in NOT_ASKED]
    return (f"Not asked: {'; '.join([*own, f'{len(NOT_ASKED)} things that no check asks'])}. The section “What is not asked” "
            "of docs/judging.md lists them, and so does --log.")


def smallest_lines(found: SmallestCase) -> list[str]:
    """The smallest case, as a part of the report."""
    lines = ["", "The smallest case that still fails", f"  {found.layer}, x = {numbers.shape(found.input)}, "
             f"{found.dtype}{', grad_output 1, expanded' if found.expanded else ''}"]
    if not found.values:
        return [*lines, f"  {found.problem}"]
    if found.x:
        lines.append(f"  x = {_row(found.x)}   weight = {_row(found.weight or ())}")
    short = {"output": "y"}.get(found.tensor, found.tensor)
    for v in found.values:
        mark = "  <- wrong" if v.wrong else ""
        row = f"  {numbers.index(short, v.index):<16} expected {v.expected:<12.6g} got {v.got:<12.6g}{mark}"
        lines.append(row.rstrip())
    return lines


def _mistake(report: CheckReport) -> list[str]:
    found = report.mistake
    if not found:
        return []
    if not found.found:
        return ["", "Similar known mistake", "  No known mistake gives this output."]
    return ["", "Similar known mistake", f"  Same output: {found.found}.", f"  {found.advice}",
            *(_wrapped(f"Differs: {'; '.join(found.differs)}.", "  ") if found.differs else [])]


def kernelbench_rows(report: CheckReport) -> list[tuple[str, bool | None, str]]:
    """Rows (judge, whether it passed, rule); None if that judge did not run. Ours is the last row."""
    found = report.kernelbench
    if not found:
        return []
    values = found.values
    asked = report.question("values")
    not_run = asked.seen.replace("Not asked", "not checked", 1).rstrip(".") if asked and asked.answer is Answer.SKIPPED else \
        "not checked: the check ended before"
    forward = f"forward only, {values.trials} input{'' if values.trials == 1 else 's'}" if values else not_run
    if values and report.size not in ("", "full"):
        forward += f", at the {report.size} size, which is not KernelBench's own"
    rule = "values" if not values else "1e-4" if values.tolerance < 1e-3 else "1e-2"
    return [(f"KernelBench, {rule}", values.strict if values else None, forward),
            ("KernelBench, 1e-2 (older)", values.loose if values else None, forward),
            ("KernelBench, text", not found.text, "; ".join(found.text) or "no forbidden word"),
            ("this judge", not report.failed if report.answered else None, _ours(report))]


def _ours(report: CheckReport) -> str:
    """How many questions failed, or passed."""
    if report.failed:
        return f"{len(report.failed)} of {len(report.answered)} questions"
    warned = f", {len(report.warned)} with a warning" if report.warned else ""
    declared = f", judged in {report.declared}, which the file declares" if report.declared else ""
    return f"{len(report.answered) - len(report.warned)} of {len(report.answered)} questions{warned}{declared}"


def kernelbench_reason(report: CheckReport) -> str:
    """Why KernelBench's verdicts and ours differ; "" if they agree and need no explanation."""
    found = report.kernelbench
    values = found.values if found else None
    words = [values.reason or ("" if values.strict else values.why)] if values else []
    if found and found.text:
        words.append("KernelBench's text check rejects the file before it runs. This check does not reject words.")
    return " ".join(filter(None, words))


def _kernelbench(report: CheckReport) -> list[str]:
    rows = kernelbench_rows(report)
    if not rows:
        return []
    word = {True: "passed", False: "failed", None: "-"}
    lines = [f"  {who:<26} {word[passed]:<7} {rule}" for who, passed, rule in rows]
    return ["", "KernelBench's verdict beside ours", *lines, *_wrapped(kernelbench_reason(report), "  ")]


def _times(report: CheckReport) -> list[str]:
    if not report.times:
        return []
    lines = []
    for direction, t in report.times.items():
        lines += ["", f"module_ms, {direction}: {sentence(direction, t)}"]
        cells = [["", "median", "ours is", "95 % interval", "verdict", "precision", ""],
                 [report.name, numbers.time(t.median_ms), "", "", "", t.precision,
                  f"{t.samples} samples of {t.calls} calls, {t.checked} compared"],
                 *([["floor", numbers.time(t.floor_ms), "", "", "", "", floor_text(t)]] if t.floor_ms else [])]
        cells += [[b.name, numbers.time(b.median_ms), numbers.ratio(b.ratio),
                   numbers.interval(b.low, b.high, b.ratio), b.verdict, b.precision,
                   "<- the file is compared with this one" if b.name == t.against else b.why_not] for b in t.baselines]
        lines += [f"  {line}" for line in aligned(cells)]
        if t.floor_ms is None:
            lines.append(f"  floor: {floor_text(t)}")
        lines += [f"  {note}" for note in t.notes]
        lines += _wrapped(default_text(t), "  ")
    lines += [line for said in without_times(report.untimed) for line in ("", *_wrapped(f"module_ms, {said}", ""))]
    lines += [line for why in left_out(report) for line in _wrapped(f"not timed: {why}", "  ")]
    return lines


def default_text(times: DirectionTimes) -> str:
    """Which precision PyTorch used with its default settings, and which library kernels ran."""
    if not times.default_precision:
        return ""
    ran = f"; it ran {', '.join(times.default_kernels)}" if times.default_kernels else ""
    return f"By its error against float64, PyTorch's default computes in {times.default_precision}{ran}."


def left_out(report: CheckReport) -> list[str]:
    """ "eager, TF32 on and eager, TF32 off (this CPU has no TF32)": the ways that were not timed, by reason."""
    by_why: dict[str, list[str]] = {}
    for direction, t in report.times.items():
        for one in t.left_out:
            everywhere = all(one in other.left_out for other in report.times.values())
            names = by_why.setdefault(one.why if everywhere else f"{direction}: {one.why}", [])
            if one.name not in names:
                names.append(one.name)
    return [f"{'; '.join(names)} ({why})" for why, names in by_why.items()]


def _row(values: Sequence[float]) -> str:
    return "[" + ", ".join(f"{v:g}" for v in values) + "]"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent) if text else []
