"""How do batches in the event queue become stored results and alerts?

Read `main.py` first (the tasks of the process), then `loop.py` (one turn), `shard.py` (one shard's
batches) and `commit.py` (a turn's transaction). `alert_state.py` decides what fires,
`dispatcher.py` who is notified; `sender.py` sends.
Imported by: cli, watch.
"""
