"""Judges a ModelNew that the workbench exported: `judge_module` asks and times, `subject` loads the file, `cases`."""
