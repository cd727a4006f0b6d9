"""What do textbook models say that no trace shows: collectives, checkpoints, where experts go?

Read `all_reduce.py` first. Pure functions, which the fixes of `app/advice` use; the tests hold each
against a simulation or an exhaustive search.
Imported by: advice.
"""
