"""Where are operations that have left the database? Begin with `moves.py`; `bucket.py` is S3."""
