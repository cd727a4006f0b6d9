"""What fires, by which rules, and who is notified?

Read `alerts.py` first, then `receivers.py`.
"""
