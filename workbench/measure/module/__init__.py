"""Judges a ModelNew that the workbench exported: `judge_module` asks, `subject` loads the file, `cases`, `times`."""
