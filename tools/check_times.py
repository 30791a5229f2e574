"""Where the time of a check goes: checks right files and prints a table; with --write it replaces the one in docs/judging.md.

    taskset -c 0,1 python tools/check_times.py [--preset kb74/small] [--device cpu] [--effort normal] [--repeat 3] [--write]

Two files are checked: PyTorch's own layer under the name ModelNew, and a file that `export` writes. Of several repeats the
fastest counts. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from workbench.core.answers import CheckReport  # noqa: E402
from workbench.core.presets import parse_preset  # noqa: E402
from workbench.drive.checking.check import CheckRequest, check, size_of, workload_reference  # noqa: E402
from workbench.drive.machine.devices import resolve_device  # noqa: E402

PAGE = ROOT / "docs" / "judging.md"
BEGIN, END = "<!-- the times of a check, from tools/check_times.py -->\n", "<!-- end of the times -->\n"
FILES = ("PyTorch's layer", "exported file")
_LEAST_S = 0.1   # shorter phases are one row
REST = "everything else"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="kb74/small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--effort", choices=("quick", "normal", "full"), default="normal")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="replace the table in docs/judging.md")
    args = parser.parse_args()
    device = resolve_device(args.device)
    workload = parse_preset(args.preset)[0].workload(parse_preset(args.preset)[1] or "small")
    reference, name = workload_reference(workload)
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "model_new.py"
        subprocess.run([sys.executable, "-m", "workbench", "export", "--preset", args.preset, "--best", "--out", str(exported)],
                       cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        texts = (re.sub(r"\bclass Model\b", "class ModelNew", reference), exported.read_text(encoding="utf-8"))
    load = os.getloadavg()[0]
    best: list[CheckReport] = []
    for file, text in zip(FILES, texts, strict=True):
        request = CheckRequest(text, reference, device, name=file, reference_name=name, size=size_of(workload), nvcc=False,
                               effort=args.effort)
        best.append(min((check(request) for _ in range(args.repeat)), key=lambda report: report.seconds))
        print(f"{file}: {best[-1].badge} in {best[-1].seconds} s", file=sys.stderr)
    found = page(best, f"`check` of {name} ({size_of(workload)}) on {_machine(device)}, effort {args.effort}; "
                 f"load average before: {load:.0f}")
    print(found)
    if args.write:
        whole = PAGE.read_text(encoding="utf-8")
        before, after = whole.partition(BEGIN)[0], whole.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}{found}{END}{after}", encoding="utf-8")
    return 0


def page(reports: Sequence[CheckReport], what: str) -> str:
    """A sentence and the table: seconds and MiB of tensors for each report, a phase a row, in the order of the first report."""
    names = [p.name for p in reports[0].phases]
    names += [p.name for r in reports for p in r.phases if p.name not in names]
    shown = [n for n in dict.fromkeys(names) if max(_spent(r, n)[0] for r in reports) >= _LEAST_S]
    heads = [cell for file, _ in zip(FILES, reports, strict=False) for cell in (f"{file}, s", "MiB")]
    lines = [f"| part | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for row in (*shown, REST, "all"):
        parts = [n for n in dict.fromkeys(names) if row == "all" or n == row or row == REST and n not in shown]
        cells = [f"{sum(_spent(r, n)[kind] for n in parts):.1f}" for r in reports for kind in (0, 1)]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    first = "; ".join(f"{file} {min((q.seconds for q in r.questions), default=0.0):.1f} s" for file, r in
                      zip(FILES, reports, strict=False))
    text = f"{what}. The first answer is known after: {first}. MiB: tensors between the processes."
    return "\n".join([text, "", *lines, ""])


def _spent(report: CheckReport, name: str) -> tuple[float, float]:
    """Seconds and MiB of a phase."""
    there = [p for p in report.phases if p.name == name]
    return sum(p.seconds for p in there), sum(p.sent_bytes + p.received_bytes for p in there) / 2**20


def _machine(device: str) -> str:
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, without a GPU" if device == "cpu" else device


if __name__ == "__main__":
    sys.exit(main())
