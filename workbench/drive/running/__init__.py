"""One run: `runner` starts it; `execution` holds the loop that builds and judges its candidates.

`request`                the request of a run, and its visible state
`candidate_selection`    turns names and values that a user gives into candidates
`builds`, `workers`      the processes of a run; `worker_process` calls and kills one of them
`outcome`                turns a worker's reply into the recorded trial
`against_pytorch`        measures PyTorch, and times each candidate alternately with PyTorch's fastest mode
`resume`                 finds what a session holds already
"""
