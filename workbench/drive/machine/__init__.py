"""`devices` (their names), `device_lock` (one run at a time on each), `daemon_threads`, `forked` (workers that share an import
of torch), `doctor` (what this machine has)."""
