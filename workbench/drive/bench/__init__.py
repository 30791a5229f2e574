"""The bench: the tables of two suites of layers in three directions, run, recorded, shown and turned into recipes.

plan (what runs) -> ahead (builds) -> go (runs) -> session -> cells (what it says) -> text, markdown, best, ship.
"""
