"""How are operations of a training worker timed, buffered and packed into batches?

Read `timing.py` first, then `buffer.py`. Nothing here knows a server.
Imported by: ingest, paceline_client, watch.
"""
