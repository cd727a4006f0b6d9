"""How far are the clocks of the hosts apart? (docs/clocks.md)

Read `measure.py` first (`measure_clocks`); it calls shared_ends.py, first_guess.py and
least_squares.py in this order.
Imported by: engine.
"""
