"""Questions that are asked in addition to those of examine.py, and the cases that they need.

questions     `habits` and `networks` (daily use; `asking` makes their calls), `magnitudes` (is it float16 or TF32?),
              `other_values`, `apart`, `kernelbench` (its own verdict)
cases         `cases` (sizes and arguments), `drawn` (inputs from get_inputs, jumps of gradients), `parameters`

A new question is a function here that returns a core.answers.Question; Examination.run in examine.py calls it.
"""
