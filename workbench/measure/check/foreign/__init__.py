"""A foreign process as the judge sees it.

`confine`, `privileges`, `other_user`   its sandbox
`process`, `wire`, `replies`            its life, the messages, and what it may answer to each operation
`slots`, `hold`, `waiting`              memory for its results; stopping it; how long others kept it waiting
`cuda_sources`                          what can be said of its CUDA source without running it
"""
