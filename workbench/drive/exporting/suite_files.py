"""The best known files of a suite: its name comes in; (file name, text) goes out, one a layer and README.md with the table."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.best_known import BestKnown
from ...core.errors import BadRequest
from ...core.presets import SUITES, problem_of
from .best_recipe import best_recipe, command, header_notes, other_dtypes
from .export import export_text


def suite_files(suite: str, arch: str, *, precision: str = "") -> Iterator[tuple[str, str]]:
    """Every layer's file, then README.md. A layer without a known kernel has a row that says so and no file."""
    rows = []
    for preset in SUITES[suite].values():
        workload = preset.workload()
        try:
            recipe, used = best_recipe(workload, arch, precision=precision)
        except BadRequest as error:
            rows.append(f"| | {preset.name} | {preset.layer} | PyTorch: {error} | | |")
            continue
        name = preset.name.rpartition("/")[2].replace("-", "_") + ".py"
        text = export_text([recipe, *other_dtypes(workload, arch)], constructor=problem_of(workload), arch=arch,
                           notes=header_notes(used, arch, precision, f"--preset {preset.name} --best"))
        yield name, text
        rows += [_row(name, preset.name, entry) for entry in used]
    yield "README.md", "\n".join([
        f"# Files of the suite {suite} for {arch}", "",
        "Times are of the kernels alone, medians with a cold L2. A direction without a row is PyTorch's.",
        "To compare a file with PyTorch on your GPU: `python FILE --check`.", "",
        f"Written by `{command(f'--suite {suite}', arch, precision)} --out FOLDER`.", "",
        "| file | layer | direction | kernel | ms | PyTorch ms |", "|---|---|---|---|---|---|", *rows, ""])


def _row(file: str, name: str, entry: BestKnown) -> str:
    ours, theirs = (f"{ms:.3f}" if ms else "not measured" for ms in (entry.ms, entry.baseline_ms))
    return f"| {file} | {name} | {entry.direction} | {entry.variant} in {entry.precision} | {ours} | {theirs} |"
