"""What does every request pass before a route sees it, and how is it refused?

Read `middleware.py` first, then `auth.py` and `limits.py`. `fields.py` and `errors.py` have the
field types and the problem documents that all routes share, `caching.py` the cache primitives.
Nothing here imports `service` or `routes`.
"""
