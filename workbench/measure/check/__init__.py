"""Judges a file that somebody else wrote. The file runs in one process, its reference in a second; the judge is a third.

`begin`            the operation check: starts the processes, then imports torch
`check_file`       asks everything, returns the report
`examine`          the order of the questions, and those about values and gradients
`progress`         reports each answer as soon as it is known; counts where the time goes
`shrink`           the smallest failing case; known wrong formulas are in measure/mistakes.py
`trialrun`         runs one case in both processes and compares with float64. It is not a trial of a session
`text/`            what the text of the file says, and the messages about it
`questions/`       the other questions, and the cases that they are asked about
`host/`            the code inside the two processes
`foreign/`         such a process as the judge sees it: sandbox, limits, messages
`clock/`           the time of a file that the judge never loads
`party`            the candidate or the reference, with its process
"""
