"""What fires, which receivers want it, and what were they sent? The SQL of alerts.

Read first: alerts.py, then notifications.py (when a group is looked at) and outbox.py (what is
to be sent). It imports app/store, which does not import it.
"""
