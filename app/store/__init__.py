"""What is known about every job, and kept? The only SQL.

One module per noun; each function takes an open connection, so that callers choose the
transaction. Read first: tables.py (what there is), database.py (connections), runs.py and
windows.py. What alerts and their receivers need is in app/store/alerting. api, ingest, consumer,
cli and main may import it; it imports no layer above alerts.
"""
