"""A search over an enumerated space: which points to try next. No session, no GPU, no torch.

`points` is what a search sees of a space, `propose` says what to try next.
"""
