"""How full is the disk of the data, what fills it, and how many days are left?

Read `usage.py` first.
Imported by: api, consumer, main, settings, store.
"""
