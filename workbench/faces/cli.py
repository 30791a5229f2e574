"""The command line: one verb, one library function. Exit codes: 0 right, 1 judged and not right, 2 a bad request,
3 nothing could run, 130 interrupted."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from .. import __version__
from ..core.errors import BadRequest

VERBS = ("doctor", "variants", "presets", "run", "show", "compare", "export", "test", "pack", "cache")
BAD_REQUEST, NOTHING_RAN, INTERRUPTED = 2, 3, 130
_CODES = "exit codes: 0 right, 1 judged and not right, 2 a bad request, 3 nothing could run, 130 interrupted"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run the verb, turn a bad request into one sentence on stderr."""
    args = _parser().parse_args(argv)
    try:
        return importlib.import_module(f"{__package__}.verbs.{args.verb}").run(args)
    except BadRequest as error:
        print(f"{error}", file=sys.stderr)
        return BAD_REQUEST
    except KeyboardInterrupt:
        print("Stopped. Finished trials are kept.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workbench", epilog=_CODES,
        description="Transposed-convolution CUDA kernels: rendered, built, judged against PyTorch, exported.")
    parser.add_argument("--version", action="version", version=f"kernel-workbench {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name in VERBS:
        module = importlib.import_module(f"{__package__}.verbs.{name}")
        text = (module.__doc__ or "").strip()
        verb = verbs.add_parser(name, help=text.splitlines()[0], description=text, epilog=_CODES,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
        module.add(verb)
    return parser
