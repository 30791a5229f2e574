"""Judges one candidate. `judge` defines the order of the steps, `validate` the tolerances, `findings` the sentences.

`inputs`, `buffers`                      tensors; guard zones and poison
`stage`                                  the tensors of one trial; whether a launch changed its inputs or a guard zone
`launch`                                 the call
`explain`                                where a wrong result is wrong, and its smallest case
`apart`                                  the same call in another process, for the emulator
`interleave`                             times two right candidates alternately
"""
