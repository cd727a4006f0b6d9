"""What do textbook models say that no trace shows: collectives and checkpoints?

Read `all_reduce.py` first. Pure functions, which fixes use; the tests hold each against
published figures, a schedule carried out round by round, or an exhaustive search.
Imported by: advice.
"""
