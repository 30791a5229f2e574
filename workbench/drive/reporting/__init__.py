"""Turns trials into sentences, tables and charts: `report` (baselines, verdicts, headline), `tables` (text), `plots`,
`compare_plots` (roofline, speed-ups, heat maps) and `tune_plots` (the charts). `tune_points` evaluates the trials of a tune.
`html_report` writes tables and charts as one file.

`pairing` matches the trials of two sessions. `main_kernel` finds a variant's main kernel among its helpers.
"""
