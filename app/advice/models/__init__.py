"""What do textbook models say that no trace shows: collectives, checkpoints, where experts go?

Read `all_reduce.py` first. Pure functions with closed forms; the fixes of `app/advice` use them, and
the tests hold each against a simulation or an exhaustive search.
Imported by: nothing.
"""
