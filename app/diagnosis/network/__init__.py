"""Which transfers are too slow, whose link or card makes them so, and what would it win to mend it?

Read `links.py` first; `transfers.py` is the table of all transfers.
Imported by: diagnosis.
"""
