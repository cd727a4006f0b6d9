"""How does a reader get the documentation, and a page its definitions, from the running service?

Read `library.py` first: every page of docs/ as HTML. `routes.py` has what stands around a page, and
the definitions of figures and causes.
Imported by: api.
"""
