"""Writes candidates as one ModelNew file: `best_recipe` and `recipe` choose, `export` writes, `module_run` judges and times."""
