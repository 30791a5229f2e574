"""What the verbs check, test and selftest do; their options and output are in faces/verbs.

`check`            a foreign file; `check_times` and `check_text` turn its result into sentences
`variant_tests`    the verb test: variants on awkward layers
`selftest`         runs the attacks on the judge; `attacks` reads them (workbench/red_team)
"""
