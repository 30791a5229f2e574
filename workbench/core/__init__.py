"""What the workbench knows without a GPU: layers, templates, trials, the messages between processes. No torch.

layer            `layer`, `facts` (work and bytes of a layer), `sectors`, `roofline` (and the rates of a GPU), `awkward` (for
                 tests)
named layers     `presets` (the layers of both suites, and a preset by its name)
kernel templates `variants` reads the header of a `.cu`; `expressions`, `space`; `candidate` (also: which layers it serves);
                 `template` renders the source; `identity` makes the candidate's id from it; `fork` (a candidate whose text a
                 person has edited)
best known       `best_known` (measured), `derived_best` (derived for other GPUs), `start_config` (the config of a derived one)
CUDA as text     `cuda_pieces` (tokens, declarations), `reduced_text` (removes code that never runs), `template_instances`
                 (with what templates are instantiated), `constant_values` (of expressions), `source_parts` (splits a source
                 into its files), `sass` (machine code)
processes        `orders` (to a worker), `replies` (from it), `typed` (both as JSON);
                 `process_orders` (to the processes that fork workers)
PyTorch          `pytorch_ways`: PyTorch's ways of computing a direction, by name; `precision`: which of them a candidate
                 competes with
results          `trial` (Status, the advice of each status, Trial), `trial_parts`; `answers` (the report of a check),
                 `check_parts`; `wrong_values` (where a result is wrong); `profile` (what ncu counts);
                 `patching` (the report of a model); `verdict` (FASTER, SLOWER, SAME, UNSURE)
this machine     `env`, `toolchain`, `gpu`, `occupancy`, `cache`, `owned_folder`
sandboxes        `confinement` (which work here), `landlock`, `seccomp`
text             `numbers`, `plain_text`, `command`, `diagnostics`, `errors`
"""
