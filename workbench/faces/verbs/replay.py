"""Compare searches on recorded search spaces. No kernel runs; all times are read from the records.

A file is a session (name or path), a cache file of Kernel Tuner, or a T4 file. The last two may be packed with gzip. A session
holds a space for each layer, direction, dtype and device. A T1 file beside results describes their tunables and conditions:
--list then says how many legal configs the results lack. The searches: surrogate (the one that 'tune' uses), random, tpe
(needs optuna), forest (needs scikit-learn), and kt:NAME, an optimiser of Kernel Tuner (needs kernel-tuner), for example
kt:genetic_algorithm.

The score is averaged over trials 10 to 100. 0 is the expected value of random search; 1 is the best of the space. A second
table has the best so far after 10, 20, 50, 100, 200 and 500 trials and after the last one. Where the times of the trials are
recorded, it also has their sum.

    python -m workbench replay convolution.json.gz --searches surrogate,random --repeats 20 --plot replay.html
    python -m workbench replay NAME --steps --plot steps.html         how the best time of a tune fell
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ...core.errors import BadRequest
from ...drive.sessions.files import name_of
from ...drive.sessions.session import list_sessions
from ..arguments import check_folder, session_from, write_whole
from ..exit_codes import RIGHT


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE",
                        help="session (name or path), cache file of Kernel Tuner, or T4 file; with --list also the T1 file of "
                             "such results")
    parser.add_argument("--searches", default="surrogate,random", metavar="NAMES",
                        help="comma-separated list of surrogate, random, tpe, forest, kt:NAME (default "
                             "surrogate,random)")
    parser.add_argument("--repeats", type=int, default=100, metavar="N", help="runs of each search (default 100)")
    parser.add_argument("--trials", type=int, default=100, metavar="N", help="trials of each run (default 100)")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="surrogate proposes N trials at a time (default 1)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default 1)")
    parser.add_argument("--space", default="", metavar="TEXT", help="only spaces whose name holds this text")
    parser.add_argument("--steps", action="store_true", help="print each improvement of the best time in a session's own "
                                                             "trials, and stop; --plot writes it as a chart over trials and "
                                                             "over time")
    parser.add_argument("--list", action="store_true",
                        help="print the spaces and how many legal configs were not tried, and stop")
    parser.add_argument("--plot", type=Path, metavar="FILE",
                        help="write the chart, as HTML if FILE ends in .html, otherwise as JSON of plotly")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the configs and times of the spaces, and stop")
    parser.add_argument("--t4", type=Path, metavar="FILE", help="write one space of a session as T4 results, and stop")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")


def run(args: argparse.Namespace) -> int:
    from ...drive.replaying import replay  # imported here, because they import numpy and pandas
    from ...drive.replaying.recorded_space import csv_of, missing, spaces_in, t4_of
    for name in ("repeats", "trials", "batch", "jobs"):
        if getattr(args, name) < 1:
            raise BadRequest(f"--{name} is {getattr(args, name)}; give 1 or more.", field=name)
    for file in (args.plot, args.csv, args.t4):
        check_folder(file)
    names = [name.strip() for name in args.searches.split(",") if name.strip()]
    for name in names or [""]:
        replay.search(name)
    places = [file if file.exists() else _session_or(file) for file in args.files]
    if args.steps:
        return _steps(places, args)
    there, described = spaces_in(places)
    chosen = [space for space in there if args.space in space.name]
    if not chosen:
        raise BadRequest(f"No space has {args.space!r} in its name; there are: {', '.join(s.name for s in there)}.",
                         field="space")
    if args.csv:
        write_whole(args.csv, csv_of(chosen).to_csv(index=False))
    if args.t4:
        if len(chosen) > 1:
            raise BadRequest(f"A T4 file holds one space, but {len(chosen)} are chosen; choose one with --space: "
                             f"{', '.join(s.name for s in chosen)}.", field="space")
        if not chosen[0].trials:
            raise BadRequest(f"{chosen[0].name} is not from a session; --t4 needs a session.", field="t4")
        write_whole(args.t4, json.dumps(t4_of(chosen[0].trials), indent=1))
    if args.csv or args.t4:
        print("".join(f"Wrote {file}.\n" for file in (args.csv, args.t4) if file), end="", file=sys.stderr)
        return RIGHT
    if args.list:
        for space in chosen:
            print("\n  ".join([str(space), *missing(space, described)]))
        return RIGHT
    for space in chosen:
        print(space, file=sys.stderr)
    done = replay.replay(chosen, names, repeats=args.repeats, trials=args.trials, batch=args.batch, jobs=args.jobs)
    frame = replay.table(done)
    print(frame.to_json(orient="records", indent=1) if args.json else replay.text(frame, trials=args.trials))
    if args.plot:
        chart = replay.figure(done)
        write_whole(args.plot, chart.to_html() if args.plot.suffix == ".html" else chart.to_json())
        print(f"Wrote {args.plot}.", file=sys.stderr)
    return RIGHT


def _session_or(file: Path) -> Path:
    """The path of the session with that name; if there is none, the given path."""
    return next((path for path in list_sessions() if name_of(path) == str(file)), file)


def _steps(places: list[Path], args: argparse.Namespace) -> int:
    """Print the tunes of some sessions, one line for each improvement of the best time."""
    from ...drive.reporting import tune_plots, tune_points
    found = []
    for place in places:
        session = session_from(place)
        found += [one for one in tune_points.of_session(session.trials(), session.events())
                  if args.space in tune_points.label(one)]
    if not found:
        raise BadRequest("No candidate was judged there; name the session of a tune, or another text with --space.",
                         field="steps")
    print(json.dumps([tune_points.as_json(one) for one in found], indent=1) if args.json else
          "\n\n".join(tune_points.steps_text(one) for one in found))
    if args.plot:
        chart = tune_plots.steps(found)
        write_whole(args.plot, chart.to_html() if args.plot.suffix == ".html" else chart.to_json())
        print(f"Wrote {args.plot}.", file=sys.stderr)
    return RIGHT
