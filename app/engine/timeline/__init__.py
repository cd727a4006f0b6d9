"""What did every worker do and when, and what would it have done without stragglers?

Read `step_view.py` first (one step for the page), then `writer.py` (Chrome trace events).
Imported by: api, charts, cli, diagnosis, engine.
"""
