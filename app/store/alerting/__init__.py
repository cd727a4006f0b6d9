"""Which alerts, receivers and messages are stored? The SQL of alerts.

Read `alerts.py` first, then `notifications.py` (when a group is due) and `outbox.py` (messages to
send).
Imported by: api, consumer, store, watch.
"""
