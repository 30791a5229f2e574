"""The parent process: it starts workers, sends them orders and keeps their replies. No torch.

`running/`       a run, from its request to its last trial
`sessions/`      the folder in which trials are kept
`reporting/`     tables, headlines and charts, made from trials
`tuning/`        tune: from a layer to the best kernel of this machine; `searching/` proposes what to try next
`replaying/`     searches replayed on recorded spaces
`bench/`         the tables of both suites
`checking/`      three verbs: check (a foreign file), test (variants on awkward layers), selftest (attacks on the judge)
`exporting/`     candidates become one ModelNew file
`patching/`      kernels for a whole model
`machine/`       names of devices, one run at a time on each, the doctor
"""
