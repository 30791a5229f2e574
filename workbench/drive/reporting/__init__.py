"""What trials mean: `report` (baselines, verdicts, headline), `tables` (text), `plots` and `compare_plots` (all charts).

`pairing` matches the trials of two sessions. `main_kernel` tells a variant's own kernel from its helpers.
"""
