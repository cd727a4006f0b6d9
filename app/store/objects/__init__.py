"""Where are operations that have left the database? `bucket.py` speaks S3; begin with `moves.py`."""
