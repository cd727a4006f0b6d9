"""What keeps the database small?

Read `thinning.py` first (old windows), then `quota.py` (projects with too many); `file_size.py`
gives free pages back.
Imported by: api, cli, consumer, store.
"""
