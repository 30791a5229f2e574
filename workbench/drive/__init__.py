"""The parent side: it starts workers, gives them orders and keeps what they send back. No torch.

`running/`       a run, from its request to its last trial
`sessions/`      the folder in which trials are kept
`reporting/`     tables, headlines and all charts, made from trials
`bench/`         the tables of both suites
`checking/`      three verbs: check (a foreign file), test (variants on awkward layers), selftest (attacks on the judge)
`exporting/`     candidates become one ModelNew file
`machine/`       names of devices, one run at a time on each, the doctor
"""
