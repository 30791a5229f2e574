"""A foreign process as the judge sees it.

`confine`, `privileges`, `other_user`   its sandbox
`process`, `wire`                       its life, and the messages
`answers`, `replies`                    what it may answer to each operation, and the test of an answer
`slots`, `hold`, `waiting`              memory for its results; stopping it; how long others kept it waiting
`cuda_sources`                          what can be said of its CUDA source without running it
"""
