"""Tune: from a layer to the best kernel of this machine. `tune` starts it; the run itself is one of drive/running.

`space`     every candidate that serves a workload, and why the others do not
`feed`      what is asked, and the feed from which any number of places take candidates
`tune`      has the candidates of the feed judged, and says what came out
`cluster`   the GPUs of a cluster as places of a run
`seen`      what the session says of candidates, other processes' included
`finals`    the best few are timed in turns, ties are broken, and the winner is judged again
`store`     the best known configs of this machine, near layers among them
`batch`     many layers share the time
`text`      all of it in words
"""
