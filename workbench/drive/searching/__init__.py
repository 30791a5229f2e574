"""A search over an enumerated space: which points to try next. No session, no GPU, no torch.

`points` describes a space as numbers, `propose` returns the points to try next.
"""
