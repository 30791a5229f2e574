"""This machine: `devices` (their names), `device_lock` (one run at a time on each), `doctor` (what the machine has).

Threads and processes: `background` (work that a face starts and watches), `daemon_threads`, `forked` (workers that share an
import of torch).
"""
