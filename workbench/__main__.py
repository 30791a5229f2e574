"""`python -m workbench VERB ...`."""

import sys

if __name__ == "__main__":
    try:
        from .faces.cli import main
        from .faces.console import console
        sys.exit(console(main, sys.argv[1:]))
    except KeyboardInterrupt:  # before the verb has begun
        sys.exit(130)
