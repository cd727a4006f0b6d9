"""What does a batch look like on the wire, and which batches and rows are refused?

Read `codec.py` first. `body.py` has the layout of a body, docs/wire-format.md its description.
Imported by: api, cli, consumer, ingest.
"""
