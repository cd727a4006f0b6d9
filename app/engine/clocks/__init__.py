"""How far are the clocks of the hosts apart? (docs/clocks.md)

Start with measure.py (`measure_clocks`); it calls shared_ends.py, first_guess.py and
least_squares.py in this order. Only the engine imports this package.
"""
