"""Writes candidates as one ModelNew file: `best_recipe` and `recipe` choose, `export` writes the file and has it judged."""
