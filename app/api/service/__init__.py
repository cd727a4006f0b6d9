"""What does one API process hold for its routes?

Read `service.py` first: `Service` has every cache, connection and limit. Each other module is one
of its fields, or a function that several routes share.
Imported by: api, cli, main, watch.
"""
