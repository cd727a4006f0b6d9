"""How are files of other tools read?

Read `registry.py` first, the table of formats, then `importing.py`, the result of each.
`op_spool.py` holds operations on disk, so that file size and order cost no memory.
Imported by: api, cli, diagnosis.
"""
