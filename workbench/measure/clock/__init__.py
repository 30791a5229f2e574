"""`timing`: how long a launch takes on the device. `signs`: other inputs for each launch. `ceilings`: the rates of a GPU.

`profile`: what Nsight Compute counts of a launch.
"""
