"""Where are operations that have left the database?

Read `moves.py` first; `bucket.py` is the bucket, by the S3 protocol.
Imported by: api, consumer, settings, store.
"""
