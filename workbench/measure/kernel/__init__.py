"""Judges one candidate. `judge` defines the order of the steps, `validate` the tolerances, `findings` the sentences.

`inputs`, `buffers`, `stage`, `launch`   tensors, guard zones and poison, the tensors of one trial, the call
`explain`                                where a wrong result is wrong, and its smallest case
`apart`                                  the same call in another process, for the emulator
`interleave`                             times two right candidates in turns
"""
