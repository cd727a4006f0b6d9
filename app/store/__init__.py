"""What is stored about every job? The only SQL.

Read `tables.py` first (the schema), then `database.py` (connections), `runs.py` and `windows.py`.
One module per noun; functions take an open connection, so that callers choose the transaction.
Imported by: api, cli, consumer, main, settings, watch.
"""
