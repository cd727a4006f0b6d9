"""Which message does each kind of receiver get?

Read `registry.py` first: it lists the formats. A format is one `render_...` function from a
notice to a message.
"""
