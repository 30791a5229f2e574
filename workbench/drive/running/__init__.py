"""One run: `runner` starts it; `execution` holds the loop that builds and judges its candidates.

`request`                what a run is asked, and what can be seen of it meanwhile
`candidate_selection`    names and values from a person become candidates
`builds`, `workers`      the processes of a run; `worker_process` calls and kills one of them
`outcome`                what a worker said becomes the trial that is recorded
`against_pytorch`        PyTorch is measured, and each candidate is timed in turns with the best of it
`resume`                 what a session holds already
"""
