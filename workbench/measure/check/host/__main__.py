"""Starts the host. There is no garbage collection while torch is imported: it would free nothing and take an eighth of the
time.

    python -m workbench.measure.check.host REQUEST_FD REPLY_FD DEVICE NAME
"""

import gc
import importlib
import sys

gc.disable()
host = importlib.import_module(f"{__package__}.host")
gc.enable()
sys.exit(host.main(sys.argv[1:]))
