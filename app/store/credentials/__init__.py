"""How are secrets stored, which pages are signed in, and what do links without a token show?

Read `sealing.py` first (encryption and its keys), then `resealing.py` (rotation); `sessions.py`
has the sessions, `share_links.py` the links.
Imported by: api, cli, consumer, settings, store.
"""
