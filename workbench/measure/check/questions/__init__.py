"""Questions that are asked in addition to those of examine.py, and the cases that they need.

questions     `habits` (daily use; `asking` makes its calls), `magnitudes` (is it float16?), `tf32`,
              `gpu_questions`, `kernelbench` (its own verdict)
cases         `cases` (sizes and arguments), `drawn` (inputs from get_inputs)
explanations  `shrink` (the smallest failing case; known wrong formulas are in measure/mistakes.py), `jumps` (of gradients)

A new question is a function here that returns a core.answers.Question; Examination.run in examine.py calls it.
"""
