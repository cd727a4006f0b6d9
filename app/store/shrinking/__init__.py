"""What keeps the database small?

Read `thinning.py` first (old windows); `file_size.py` gives free pages back.
Imported by: cli, consumer, store.
"""
