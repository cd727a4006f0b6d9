"""Which message does each kind of receiver get?

Read `registry.py` first: it lists the formats, each a `render_...` function from notice to message.
Imported by: alerts, api, consumer, store, watch.
"""
