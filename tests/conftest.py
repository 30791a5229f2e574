"""What holds for all tests."""

from __future__ import annotations

import signal

# Who is started in the background of a script, or by nohup, ignores these, and so does all that it starts. The tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
