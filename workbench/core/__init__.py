"""What the workbench knows without a GPU: layers, templates, trials, the messages between processes. No torch.

layer            `layer`, `facts` (work and bytes of a layer), `sectors`, `roofline`, `ceilings`, `awkward` (layers for tests)
named layers     `presets` holds both suites; their layers are in `suite_kernelbench` and `suite_models`; `preset`
kernel templates `variants` reads the header of a `.cu`, `shared_template` that of a file with two directions; `expressions`,
                 `space`, `candidate`; `template` renders the source; `identity` makes the candidate's id from it; `best_known`;
                 `fork` (a candidate whose text a person has edited)
processes        `orders` (what a worker is asked), `replies` (what it sends back), `typed` (both as JSON)
PyTorch          `pytorch_ways`: PyTorch's ways of computing a direction, by name
results          `trial` (Status, the advice of each status, Trial), `trial_parts`; `answers` (the report of a check),
                 `check_parts`; `verdict` (FASTER, SLOWER, SAME, UNSURE)
this machine     `env`, `toolchain`, `toolkit_wheels`, `gpu`, `occupancy`, `cache`, `owned_folder`, `shipped`, `confinement`
                 (which sandboxes work here), `landlock`
text             `numbers`, `plain_text`, `command`, `diagnostics`, `errors`
"""
