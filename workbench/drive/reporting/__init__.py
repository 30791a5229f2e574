"""What trials mean: `report` (baselines, verdicts, headline), `tables` (text), `plots`, `compare_plots` and `tune_plots` (all charts).

`pairing` matches the trials of two sessions. `tune_points` is what the trials of a tune say. `main_kernel` tells a variant's own kernel from its helpers.
"""
