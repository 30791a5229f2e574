"""The right results: `reference` computes them in float64; `definition` is the formula in numpy that guards `reference`."""
