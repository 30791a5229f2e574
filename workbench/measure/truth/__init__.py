"""The right results: `reference` computes them in float64."""
