"""The command line: one verb, one library function. Its exit codes are in `exit_codes`."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from .. import __version__
from ..core import diagnostics
from ..core.errors import BadRequest, or_nearest
from ..drive.sessions.session import SessionFull
from .exit_codes import BAD_REQUEST, CRASHED, INTERRUPTED, NOTHING_RAN, WORDS

VERBS = {
    "app": "serve the page in the browser",
    "doctor": "list what this machine has, what works, and the command that installs what is missing",
    "variants": "list the kernel templates",
    "presets": "list the named layers: 17 of KernelBench and 22 of published models",
    "run": "build, judge and time candidates on one layer",
    "show": "list the trials of a session, or all sessions",
    "compare": "compare two sessions",
    "profile": "show what limits a trial's kernels on its GPU, from Nsight Compute's counters",
    "diff": "show how two candidates differ: template, source, config, PTX or SASS",
    "replay": "compare searches on recorded search spaces",
    "check": "check a ModelNew file against a reference: values, gradients, time",
    "bench": "measure the layers of a suite, and print or write the table",
    "export": "write the chosen kernels as one self-contained ModelNew file",
    "tune": "find the fastest right kernel of a layer on this machine, and store it",
    "patch": "replace the transposed convolutions of a model with faster kernels",
    "test": "check variants on awkward layers and print one line per case",
    "selftest": "run the adversarial test suite on this machine",
    "pack": "make one zip of a session, or open such a zip",
    "cache": "show or empty the cache of built libraries",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the arguments and run the verb. A bad request becomes one sentence on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        parser("").print_help()
        return BAD_REQUEST
    try:
        if not words[0].startswith("-") and words[0] not in VERBS:
            raise BadRequest(f"There is no verb {words[0]!r}; {or_nearest(words[0], VERBS)}")
        args, unknown = parser(words[0]).parse_known_args(words)
        if unknown:
            raise BadRequest(f"{args.verb} takes no {' '.join(unknown)}; see 'python -m workbench {args.verb} --help'.")
        if args.verbose:
            diagnostics.switch_on()
        return importlib.import_module(f"{__package__}.verbs.{args.verb}").run(args)
    except BadRequest as error:
        print(f"{error}", file=sys.stderr)
        return BAD_REQUEST
    except SessionFull as error:
        print(f"{error}", file=sys.stderr)
        return NOTHING_RAN
    except KeyboardInterrupt:
        print("Stopped. Finished trials are kept.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "workbench").partition(".")[0] != "workbench":
            print(f"{error.name} is not installed: {sys.executable} -m pip install -r requirements.txt ('python -m workbench "
                  f"doctor' says what else is missing).", file=sys.stderr)
            return NOTHING_RAN
        traceback.print_exc()
        print("The workbench itself has failed. This is a defect of the workbench, not of a kernel. Please report it with the "
              "lines above.", file=sys.stderr)
        return CRASHED


class _Parser(argparse.ArgumentParser):
    """Prints only the sentence that says what is wrong. argparse would print the usage first, which has 30 lines for some
    verbs."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (\S+): ", r"\1: ", message)
        self.exit(BAD_REQUEST, f"{self.prog}: {message}; see '{self.prog} --help'.\n")


def parser(chosen: str) -> argparse.ArgumentParser:
    """A parser with all verbs by name. Only the chosen verb is imported, because some import pandas."""
    whole = _Parser(
        prog="python -m workbench", epilog=WORDS,
        description="Render, build, judge and export CUDA kernels for transposed convolutions.")
    whole.add_argument("--version", action="version", version=f"kernel-workbench {__version__}")
    verbs = whole.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, summary in VERBS.items():
        verb = verbs.add_parser(name, help=summary, epilog=WORDS, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == chosen:
            module = importlib.import_module(f"{__package__}.verbs.{name}")
            verb.description = module.__doc__
            module.add(verb)
            verb.add_argument("-v", "--verbose", action="store_true", help="print details, on stderr also of the workers")
    return whole
