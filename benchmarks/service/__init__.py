"""The running service: ingest, pipeline, API and pages, on a stack of its own (stack.py)."""
