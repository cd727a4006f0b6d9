"""The analysis process: takes batches from the event queue, and stores what windows tell.

Read first: main.py (what runs beside what), loop.py (one turn), shard.py (one shard's batches),
commit.py (the one transaction of a turn). Alerts: alert_state.py decides what fires,
dispatcher.py who is notified, sender.py sends. Only cli may import it.
"""
