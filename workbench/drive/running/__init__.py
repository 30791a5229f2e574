"""One run: `runner` starts it; `execution` holds the loop that builds and judges its candidates.

`request`                what a run is asked, and what can be seen of it meanwhile
`candidate_selection`    names and values from a person become candidates
`builds`, `workers`      the processes of a run; `worker_process` calls and kills one of them
`outcome`                what a worker said becomes the trial that is recorded
`interleaved`            the last step of a candidate: timed in turns with the best PyTorch
`resume`                 what a session holds already
"""
