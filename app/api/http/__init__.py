"""What does every request pass before a route sees it, and how is it refused?

Read `middleware.py` first, then `auth.py` and `limits.py`. `fields.py` and `errors.py` have the
field types and problem documents of all routes.
Imported by: api, main, watch.
"""
