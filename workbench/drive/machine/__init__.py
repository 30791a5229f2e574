"""`devices` (their names), `device_lock` (one run at a time on each), `daemon_threads`, `doctor` (what this machine has)."""
