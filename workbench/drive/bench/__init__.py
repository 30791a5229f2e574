"""The bench: the table of KernelBench's 17 layers in three directions, run, recorded, shown and turned into recipes.

plan (what runs) -> ahead (builds) -> go (runs) -> session -> cells (what it says) -> text, markdown, best, ship.
"""
