"""Kernels for a whole model: `patch` does the work, `choose` finds the recipe of each layer, `write` makes the file that puts
them into the model, `text` and `plots` show the report. `live` is for a model in the caller's own process."""
