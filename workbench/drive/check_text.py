"""A `CheckReport` as text for a terminal."""

from __future__ import annotations

import textwrap

from ..core import numbers
from ..core.answers import Answer, CheckReport

_MARKS = {Answer.FAILED: "x", Answer.SKIPPED: "-", Answer.WARNED: "!", Answer.PASSED: "+", Answer.NOTE: "i"}
_WIDTH = 118


def report_text(report: CheckReport) -> str:
    """Verdict first, then the questions, failed first; then what explains a failure."""
    lines = [f"{report.badge}  {report.headline}", *_wrapped(report.evidence, "  ")]
    lines.append("")
    for q in report.ordered:
        status = f" [{q.status}]" if q.status and q.answer is Answer.FAILED else ""
        lines.append(f"{_MARKS[q.answer]} {q.answer:<8}{q.question}{status}")
        lines += _wrapped(q.seen, "            ")
        if q.advice and q.answer in (Answer.FAILED, Answer.WARNED, Answer.SKIPPED):
            lines += _wrapped(f"-> {q.advice}", "            ")
    lines += [*_smallest(report), *_mistake(report), *_kernelbench(report), *_times(report), ""]
    where = f"on {report.device}, seed {report.seed}, {report.seconds:.0f} s"
    lines.append(f"{where}; {confinement(report)}")
    return "\n".join(lines)


def confinement(report: CheckReport) -> str:
    """Whether the file was confined, and what that means."""
    if not report.confined:
        return "the file ran in bwrap: no network, own scratch folder, the rest of the disk read-only"
    return f"the file was not confined: {report.confined}; it ran as you, in its own process, with limits of time and memory"


def _smallest(report: CheckReport) -> list[str]:
    found = report.smallest
    if not found:
        return []
    lines = ["", "The smallest case that still fails", f"  {found['layer']}, x = {numbers.shape(found['input'])}, "
             f"{found['dtype']}"]
    values = found.get("values")
    if not values:
        return [*lines, f"  {found['problem']}"]
    if found.get("x"):
        lines.append(f"  x = {_row(found['x'])}   weight = {_row(found.get('weight', []))}")
    short = {"output": "y"}.get(found["tensor"], found["tensor"])
    for v in values:
        mark = "  <- wrong" if v["wrong"] else ""
        lines.append(f"  {numbers.index(short, v['index']):<16} expected {v['expected']:<12.6g} got {v['got']:<12.6g}{mark}")
    return lines


def _mistake(report: CheckReport) -> list[str]:
    found = report.mistake
    if not found:
        return []
    if not found["found"]:
        return ["", "Which mistake it looks like", "  None of the known ones gives this output."]
    return ["", "Which mistake it looks like", f"  Same output: {found['found']}.", f"  {found['advice']}",
            *([f"  Differs: {', '.join(found['differs'])}."] if found["differs"] else [])]


def _kernelbench(report: CheckReport) -> list[str]:
    found = report.kernelbench
    if not found:
        return []
    word = {True: "passed", False: "failed"}
    theirs = f"KernelBench, {found['tolerance']:g}: {word[found['strict']]}; older rule, 1e-2: {word[found['loose']]}"
    return ["", "KernelBench's verdict beside ours",
            f"  {theirs}; forward only, {found['trials']} inputs. This judge: {word[found['ours']]}.",
            *_wrapped(found["reason"] or ("" if found["strict"] else found["why"]), "  ")]


def _times(report: CheckReport) -> list[str]:
    if not report.times:
        return []
    lines = ["", "module_ms"]
    for direction, t in report.times.items():
        lines.append(f"  {direction:<9} {numbers.time(t['median_ms']):>10}  {t['samples']} samples of {t['calls']} calls, "
                     f"{t['checked']} compared")
        for b in t["baselines"]:
            between = f" ({numbers.interval(b['low'], b['high'], b['ratio'])})" if b["low"] is not None else ""
            lines.append(f"  {'':<9} {numbers.time(b['median_ms']):>10}  {b['name']}: {b['verdict']} "
                         f"{numbers.ratio(b['ratio'])}{between}")
    return lines


def _row(values: list[float]) -> str:
    return "[" + ", ".join(f"{v:g}" for v in values) + "]"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent) if text else []
