"""This machine: `device_lock` (one run at a time on each device), `doctor` (what the machine has, the names of its devices).

Threads and processes: `background` (work that a face starts and watches), `daemon_threads`, `forked` (workers that share an
import of torch).
"""
