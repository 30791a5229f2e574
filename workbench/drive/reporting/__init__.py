"""What trials mean: `report` (baselines, verdicts, headline), `tables` (text), `plots`, `compare_plots` and `tune_plots` (the
charts). `tune_points` is what the trials of a tune say.

`pairing` matches the trials of two sessions. `main_kernel` tells a variant's own kernel from its helpers.
"""
