"""How are secrets stored, and which pages are signed in?

Read `sealing.py` first (encryption and its keys), then `resealing.py` (rotation); `sessions.py`
has the sessions.
Imported by: api, cli, consumer, settings, store.
"""
