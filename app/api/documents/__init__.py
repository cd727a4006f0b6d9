"""How does a reader get the documentation, and a page its definitions, from the running service?

Read `library.py` first: every page of docs/ as HTML. `glossary.py` has definitions of figures
and causes, `frame.py` what stands around a page.
Imported by: api.
"""
