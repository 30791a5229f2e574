"""The command line: one verb, one library function. Its exit codes are in `exit_codes`."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence

from .. import __version__
from ..core import diagnostics
from ..core.errors import BadRequest
from ..drive.sessions.session import SessionFull
from .exit_codes import BAD_REQUEST, CRASHED, INTERRUPTED, NOTHING_RAN, WORDS

VERBS = {
    "app": "serve the page in the browser",
    "doctor": "what this machine has, what works now, and the command that would enable the rest",
    "variants": "the kernel templates there are",
    "presets": "the 17 KernelBench layers",
    "run": "build, judge and time candidates on one layer",
    "show": "the trials of a session",
    "compare": "two sessions side by side",
    "check": "a foreign ModelNew file against a reference: right, with gradients, how fast",
    "bench": "the table of the 17 KernelBench layers: run, print, write down",
    "export": "write the chosen recipe as one self-contained ModelNew file",
    "test": "validate variants over awkward layers, one line a case",
    "selftest": "cheating and broken kernels: is each caught on this machine",
    "pack": "one zip of a session, or open such a zip",
    "cache": "the cache of built libraries",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run the verb, turn a bad request into one sentence on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args = parser(words[0] if words else "").parse_args(words)
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
        print("The workbench itself has failed: this is a defect, and says nothing about a kernel. Please report it with "
              "the lines above.", file=sys.stderr)
        return CRASHED


def parser(chosen: str) -> argparse.ArgumentParser:
    """All verbs by name; only the chosen one is imported, because some bring pandas."""
    whole = argparse.ArgumentParser(
        prog="python -m workbench", epilog=WORDS,
        description="Transposed-convolution CUDA kernels: rendered, built, judged against PyTorch, exported.")
    whole.add_argument("--version", action="version", version=f"kernel-workbench {__version__}")
    verbs = whole.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, summary in VERBS.items():
        verb = verbs.add_parser(name, help=summary, epilog=WORDS, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == chosen:
            module = importlib.import_module(f"{__package__}.verbs.{name}")
            verb.description = module.__doc__
            module.add(verb)
            verb.add_argument("-v", "--verbose", action="store_true", help="log on stderr what the worker processes do")
    return whole
