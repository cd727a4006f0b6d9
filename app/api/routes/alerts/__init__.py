"""Which alerts are active, by which rules, and who is notified?

Read `alerts.py` first, then `receivers.py`.
Imported by: api.
"""
