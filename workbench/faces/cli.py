"""The command line: one verb, one library function. Exit codes: 0 right, 1 judged and not right, 2 a bad request,
3 nothing could run, 130 interrupted."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from .. import __version__
from ..core.errors import BadRequest
from ..drive.session import SessionFull

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
BAD_REQUEST, NOTHING_RAN, INTERRUPTED = 2, 3, 130
_CODES = "exit codes: 0 right, 1 judged and not right, 2 a bad request, 3 nothing could run, 130 interrupted"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run the verb, turn a bad request into one sentence on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = _parser(words[0] if words else "").parse_args(words)
    try:
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
    except BrokenPipeError:
        return 0


def _parser(chosen: str) -> argparse.ArgumentParser:
    """All verbs by name; only the chosen one is imported, because some bring pandas."""
    parser = argparse.ArgumentParser(
        prog="python -m workbench", epilog=_CODES,
        description="Transposed-convolution CUDA kernels: rendered, built, judged against PyTorch, exported.")
    parser.add_argument("--version", action="version", version=f"kernel-workbench {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, summary in VERBS.items():
        verb = verbs.add_parser(name, help=summary, epilog=_CODES, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == chosen:
            module = importlib.import_module(f"{__package__}.verbs.{name}")
            verb.description = module.__doc__
            module.add(verb)
    return parser
