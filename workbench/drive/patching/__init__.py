"""Kernels for a whole model: `patch` does the work and makes the file that puts them into the model, `choose` finds the
recipe of each layer, `text` and `plots` show the report. `live` is for a model in the caller's own process."""
