"""Tune: from a layer to the best kernel of this machine. `tune` starts it; the run itself is one of drive/running.

`space`     all candidates for a workload, and why other variants are left out
`feed`      the request of a tune, and the feed from which any number of places take candidates
`tune`      judges the candidates of the feed, and returns the result
`cluster`   the GPUs of a cluster as places of a run
`seen`      the candidates in the session, also those of other processes
`finals`    times the best few alternately, breaks ties, and judges the winner again
`store`     the best known configs of this machine, also of similar layers
`batch`     shares the time over many layers
`text`      the sentences of all of these
"""
