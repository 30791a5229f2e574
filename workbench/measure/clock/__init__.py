"""`timing`: how long a launch takes on the device. `ceilings`: the rates of a GPU."""
