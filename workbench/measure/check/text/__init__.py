"""What the text of a foreign file says, and the messages about it.

`build_question`   the question whether the file imports and builds; `advice` says what to do about its exceptions,
                   `compile_advice` about what a compiler or linker says
`cuda_sources`     examines the CUDA source without running it
`reached`          the parts of the text that no question has run
"""
