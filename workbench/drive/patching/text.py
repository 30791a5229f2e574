"""Writes a `PatchReport` as sentences and as text for a terminal: the verdict first, then layer by layer."""

from __future__ import annotations

import textwrap

from ...core import numbers
from ...core.patching import FASTER_ONLY, INFERENCE, LIVE, TRAINING, Drift, Pairs, PatchedLayer, PatchReport
from ...core.verdict import SLOWER
from ..reporting.report import EMULATED
from ..reporting.tables import aligned

_WIDTH = 110


def verdict(report: PatchReport) -> str:
    """One word. MISMATCH: the patched model gave other results. WARN: kernels of some layers are not right. SLOWER: the patched
    model was slower, so nothing is patched. Otherwise the verdict of the requested step; EMULATED without a time; SKIPPED if
    nothing is patched."""
    if report.differs:
        return "MISMATCH"
    if report.wrong:
        return "WARN"
    if report.undone:
        return SLOWER
    if pairs := report.times.get(TRAINING) or report.times.get(INFERENCE):
        return pairs.verdict
    return EMULATED if report.emulated and report.kept else "SKIPPED"


def headline(report: PatchReport) -> str:
    """`FASTER` in words, with the number and how many layers."""
    kept, count = len(report.kept), len(report.layers)
    layers = f"{kept} of {_layers(count)} {'is' if kept == 1 else 'are'} patched"
    if report.differs:
        return f"Nothing is patched: {report.differs}."
    if report.undone:
        return "Nothing is patched: with the kernels the whole model was slower."
    if report.times:
        words = [f"{name} {numbers.ratio(p.ratio)} as fast ({numbers.interval(p.low, p.high, p.ratio)})"
                 for name, p in report.times.items()]
        return f"{layers}; {', '.join(words)}."
    if kept:
        return f"{layers}; emulated: not timed."
    return f"Nothing is patched: 0 of {_layers(count)}."


def evidence(report: PatchReport, right_by: str = "give --keep right") -> str:
    """The sentence below the headline: the facts for it, or what to do next. `right_by`: how this face is told to replace right
    layers."""
    if report.wrong:
        return f"The kernels of {_layers(len(report.wrong))} were judged and are not right; these layers are left to PyTorch."
    if not report.layers:
        return "The model has no nn.ConvTranspose; its functional calls cannot be patched."
    if report.emulated and report.keep == FASTER_ONLY and any(row.status for row in report.layers):
        return ("The CPU emulates the kernels, so it is not known whether they are faster. To patch each layer whose kernels "
                f"are right, {right_by}.")
    return " ".join(f"{name}: {_drift(d, report.source.autocast)}." for name, d in report.drift.items())


def report_text(report: PatchReport) -> str:
    """The whole report."""
    source = report.source
    mode = ", ".join(filter(None, [source.dtype, f"autocast {source.autocast}" if source.autocast else "",
                                   "with a training step" if source.train else "inference"]))
    name = "A model of this process" if source.model == LIVE else source.model
    lines = [f"{verdict(report)}  {report.name}: {headline(report)}", *_wrapped(evidence(report), "  "), "",
             f"{name} on {report.device}{' (kernels emulated)' if report.emulated else ''}, {mode}", ""]
    if report.layers:
        rows = [("", "layer", "what it is", "calls", "share", *times_head(report), "kernels"),
                *((("patched" if row.kept else "left"), *cells(row, report)) for row in report.layers)]
        lines += [*aligned(rows), ""]
        lines += ["Why:", *(line for row in report.layers for line in _wrapped(f"{row.found.name}: {row.reason}", "  ")), ""]
    if report.functional:
        lines += ["These calls of F.conv_transpose cannot be patched, because they are not calls of a module:",
                  *(f"  {c.function}  {c.file}, line {c.line}  ({c.count} {'call' if c.count == 1 else 'calls'} a step)"
                    for c in report.functional), ""]
    lines += end_to_end(report)
    lines += [line for note in report.notes for line in _wrapped(note, "")]
    repeat = f" Repeat it: {report.command}" if report.command else ""
    return "\n".join([*lines, f"Took {numbers.seconds(report.seconds)}.{repeat}"])


def file_notes(report: PatchReport) -> list[str]:
    """Sentences for the header of a patch file: where it was judged, the times of each layer and of the model, the command."""
    where = ("Judged on the CPU emulator. No time was measured: on a GPU PyTorch computes a layer whose kernels nobody "
             "measured there, until layer.forward.prepare(x, measure=True) has measured them." if report.emulated else
             f"Judged and timed on {report.device}. On another kind of GPU PyTorch computes the layers.")
    times = [f"{row.found.name}, {name}: {numbers.time(p.patched_ms)}, PyTorch {numbers.time(p.original_ms)}, {_pairs(p)}."
             for row in report.kept for name, p in row.times.items()]
    repeat = [f"Written by: {report.command} --out FILE"] if report.command else []
    return [where, *times, *filter(None, end_to_end(report)), *repeat]


def times_head(report: PatchReport) -> tuple[str, ...]:
    """One column for each step (inference, training) that was timed."""
    return tuple(name for name in (INFERENCE, TRAINING) if any(name in row.times for row in report.layers))


def cells(row: PatchedLayer, report: PatchReport) -> tuple[str, ...]:
    """The row of one instance: path, layer, calls, share of the step, times, kernels."""
    found = row.found
    call = found.largest
    kind = f"{found.layer}" + (f", {numbers.shape(call.shape)} {call.dtype}" if call else "")
    if call and call.memory_format != "contiguous":
        kind += f" {call.memory_format}"
    kernels = "; ".join(dict.fromkeys(row.recipe.values())) if row.recipe else numbers.MISSING
    return (found.name, kind, str(sum(c.count for c in found.calls)), numbers.share(found.share),
            *(_pairs(row.times.get(name)) for name in times_head(report)), kernels)


def end_to_end(report: PatchReport) -> list[str]:
    """The whole model: times, drift, memory."""
    lines = []
    for name, p in report.times.items():
        lines.append(f"{name}: {numbers.time(p.original_ms)} with PyTorch, {numbers.time(p.patched_ms)} patched, {_pairs(p)}, "
                     f"{p.samples} pairs of alternating samples")
    if report.kept and report.emulated:
        lines.append("The whole model: emulated, not timed.")
    for name, d in report.drift.items():
        lines.append(f"Drift of the {name}: {_drift(d, report.source.autocast)}.")
    if report.peak_bytes:
        lines.append(f"Peak memory of a step: {numbers.memory(report.peak_bytes['original'])} with PyTorch, "
                     f"{numbers.memory(report.peak_bytes['patched'])} patched.")
    return [*lines, ""] if lines else []


def _pairs(pairs: Pairs | None) -> str:
    if pairs is None:
        return numbers.MISSING
    return f"{pairs.verdict} {numbers.ratio(pairs.ratio)} ({numbers.interval(pairs.low, pairs.high, pairs.ratio)})"


def _drift(drift: Drift, autocast: str) -> str:
    ways = f"autocast {autocast} against no autocast" if autocast else "TF32 against float32"

    def said(what: str, value: float | None, own: float | None) -> str:
        if value is None:
            return ""
        its = f" (PyTorch's own {ways}: {numbers.error(own)})" if own is not None else ""
        return f"{what} differ by {numbers.error(value)}{its}"
    words = [said("outputs", drift.outputs, drift.own_outputs), said("gradients", drift.gradients, drift.own_gradients)]
    return ", ".join([*filter(None, words), "relative L2"]) if any(words) else "there is nothing to compare"


def _layers(count: int) -> str:
    return f"{count} layer{'' if count == 1 else 's'}"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ") if text else []
