"""Where the time of a check goes: checks right files and prints a table; with --write it replaces the one in docs/judging.md.

    taskset -c 0,1 python tools/check_times.py [--preset kb74/small] [--device cpu] [--effort normal] [--repeat 3] [--write]
    python tools/check_times.py --device cuda:0 --preset kb74 kb64 kb81 --file exported --repeat 1 --out FOLDER

Two files are checked: PyTorch's own layer under the name ModelNew, and a file that `export` writes. Of several repeats the
fastest counts. Run it on a machine that does nothing else. With --out the folder gets the whole report of each check as JSON
when it is known, and the tables as times.md. After --limit seconds a check is stopped; its report holds what was known.
With --under 15 it exits 1 if a fastest repeat took 15 s or more, or was stopped, and names it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from workbench.core.answers import CheckReport  # noqa: E402
from workbench.core.presets import parse_preset  # noqa: E402
from workbench.core.typed import to_json  # noqa: E402
from workbench.drive.checking.check import CheckRequest, check, size_of, workload_reference  # noqa: E402
from workbench.drive.machine.doctor import resolve_device  # noqa: E402

PAGE = ROOT / "docs" / "judging.md"
BEGIN, END = "<!-- the times of a check, from tools/check_times.py -->\n", "<!-- end of the times -->\n"
FILES = ("PyTorch's layer", "exported file")
COLUMNS = ("file", "float64", "moved", "judge", "MiB")
REST = "everything else"
_LEAST_S = 0.1   # shorter phases are one row
_LOOK_S = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", nargs="+", default=["kb74"], help="without a size: small on the CPU, full on a GPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--effort", choices=("quick", "normal", "full"), default="normal")
    parser.add_argument("--file", choices=("both", "layer", "exported"), default="both", help="which of the two files")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds after which a check is stopped")
    parser.add_argument("--under", type=float, metavar="SECONDS", help="exit 1 if a check takes so many seconds")
    parser.add_argument("--out", type=Path, help="a folder for the reports as JSON")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/judging.md")
    args = parser.parse_args()
    if args.write and (len(args.preset) > 1 or args.file != "both"):
        parser.error("--write needs one preset and both files")
    device = resolve_device(args.device)
    files = FILES if args.file == "both" else FILES[args.file == "exported":][:1]
    pages, slow = [], list[str]()
    for preset in args.preset:
        written, reports = _of_preset(preset, device, files, args)
        pages.append(written)
        slow += too_slow(reports, preset, args.under)
        print(pages[-1], flush=True)
        if args.out:
            (args.out / "times.md").write_text("\n".join(pages), encoding="utf-8")
    if args.write:
        whole = PAGE.read_text(encoding="utf-8")
        before, after = whole.partition(BEGIN)[0], whole.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}{pages[0]}{END}{after}", encoding="utf-8")
    for sentence in slow:
        print(sentence, file=sys.stderr)
    return 1 if slow else 0


def too_slow(reports: Sequence[CheckReport], preset: str, under_s: float | None) -> list[str]:
    """A sentence for each report that was stopped or took `under_s` seconds or more."""
    return [] if under_s is None else [
        f"{preset}, {r.name}: {r.seconds:.1f} s, not under {under_s:g} s{r.stopped and f' (stopped {r.stopped})'}"
        for r in reports if r.stopped or r.seconds >= under_s]


def page(reports: Sequence[CheckReport], what: str) -> str:
    """A sentence and the table: for each report seconds, what they were spent on, and MiB of tensors. A phase is a row, in the
    order of the first report. The milestones of a check follow."""
    names = [p.name for p in reports[0].phases]
    names += [p.name for r in reports for p in r.phases if p.name not in names]
    shown = [n for n in dict.fromkeys(names) if max(_spent(r, n)[0] for r in reports) >= _LEAST_S]
    heads = [cell for r in reports for cell in (f"{r.name}, s", *COLUMNS)]
    lines = [f"| part | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for row in (*shown, REST, "all"):
        parts = [n for n in dict.fromkeys(names) if row == "all" or n == row or row == REST and n not in shown]
        cells = [f"{sum(_spent(r, n)[kind] for n in parts):.1f}" for r in reports for kind in range(1 + len(COLUMNS))]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    known = [f"{r.name}: {'; '.join(f'{words} {seconds:.1f} s' for words, seconds in _milestones(r))}." for r in reports]
    starts = "; ".join(f"{sum(p.starts for p in r.phases)} and {sum(p.requests for p in r.phases)}" for r in reports)
    text = (f"{what}. Seconds until an answer was known: {' '.join(known)} Processes started and requests sent: {starts}. "
            "Columns, in seconds: file: waiting for the file's process; float64: waiting for the truth; moved: moving tensors "
            "between processes; judge: drawing and comparing.")
    return "\n".join([textwrap.fill(text, 128, break_long_words=False, break_on_hyphens=False), "", *lines, ""])


def _of_preset(preset: str, device: str, files: Sequence[str], args: argparse.Namespace) -> tuple[str, list[CheckReport]]:
    chosen, size = parse_preset(preset, default_size="small" if device == "cpu" else "full")
    workload = chosen.workload(size)
    reference, name = workload_reference(workload)
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "model_new.py"
        subprocess.run([sys.executable, "-m", "workbench", "export", "--preset", f"{chosen.name}/{size}", "--best",
                        "--out", str(exported)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        texts = dict(zip(FILES, (re.sub(r"\bclass Model\b", "class ModelNew", reference), exported.read_text(encoding="utf-8")),
                         strict=True))
    load = os.getloadavg()[0]
    best: list[tuple[CheckReport, float]] = []
    for file in files:
        request = CheckRequest(texts[file], reference, device, name=file, reference_name=name, size=size_of(workload),
                               nvcc=False, effort=args.effort)
        reports = []
        for number in range(args.repeat):
            report, cpu_s = _checked(request, args.limit)
            print(f"{chosen.name}/{size}, {file}: {report.badge} in {report.seconds} s, {cpu_s:.1f} s of processors"
                  f"{report.stopped and f', stopped {report.stopped}'}", file=sys.stderr, flush=True)
            if args.out:
                args.out.mkdir(parents=True, exist_ok=True)
                path = args.out / f"{chosen.name}-{size}-{args.effort}-{file.split()[0]}-{number}.json".replace("/", "-")
                path.write_text(json.dumps({"cpu_s": cpu_s, **json.loads(to_json(report))}, indent=1), encoding="utf-8")
            reports.append((report, cpu_s))
        best.append(min(reports, key=lambda one: one[0].seconds))
    spent = ", ".join(f"{cpu_s:.0f} s" for _, cpu_s in best)
    fastest = [report for report, _ in best]
    return page(fastest, f"`check` of {name} ({size_of(workload)}) on {_machine(device)}, effort "
                f"{args.effort}; load average before: {load:.0f}; processor time: {spent}"), fastest


def _checked(request: CheckRequest, limit_s: float) -> tuple[CheckReport, float]:
    """The report, and the seconds of processors that all its processes took."""
    stop, done = threading.Event(), threading.Event()
    taken: dict[int, float] = {}
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {text}", file=sys.stderr, flush=True)

    def watch() -> None:
        while not done.wait(_LOOK_S):
            taken.update(_cpu_s())
            if time.monotonic() - begun > limit_s:
                stop.set()

    before = time.process_time()
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        report = check(request, on_text=say, stopped=stop)
    finally:
        done.set()
        thread.join()
    return report, sum(taken.values()) + time.process_time() - before


def _cpu_s() -> dict[int, float]:
    """Of each process below this one, as long as it lives: what a sandbox kills is not counted by its parent."""
    parents, seconds = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(words[1])
            seconds[int(entry.name)] = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return {pid: seconds[pid] for pid in ours - {os.getpid()} if pid in seconds}


def _milestones(report: CheckReport) -> list[tuple[str, float]]:
    """When the first answer was known, all of correctness, and the times."""
    answers = [q for q in report.questions if q.key != "times"]
    timed = [q.seconds for q in report.questions if q.key == "times" and report.times]
    return [("first answer", min((q.seconds for q in answers), default=0.0)),
            ("all but the times", max((q.seconds for q in answers), default=0.0)), *(("times", s) for s in timed)]


def _spent(report: CheckReport, name: str) -> list[float]:
    """Seconds of a phase; of these those of `COLUMNS`; and MiB."""
    there = [p for p in report.phases if p.name == name]
    seconds = sum(p.seconds for p in there)
    waited = sum(p.reference_s + p.candidate_s for p in there)
    return [seconds, sum(p.candidate_s for p in there), sum(p.truth_s for p in there), sum(p.moved_s for p in there),
            max(0.0, seconds - waited), sum(p.sent_bytes + p.received_bytes for p in there) / 2**20]


def _machine(device: str) -> str:
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, without a GPU" if device == "cpu" else device


if __name__ == "__main__":
    sys.exit(main())
