"""The bench: the tables of the two suites of layers, in three directions.

`plan`                     which candidates run for which layer
`prebuild`, `execute`      build ahead, run, write a session
`cells`                    what the session says of each cell, and which target the cell misses
`text`, `markdown`         the table for a terminal; the tables of README and docs/benchmark.md
`modules`                  whole modules: the best known kernels of a layer as one ModelNew, against nn.ConvTranspose
`best`                     the entries of core/best_known.json
`defaults`                 default configs compared with the best measured ones
`package_session`          a copy of a session that is small enough to ship
"""
