"""How do other tools write down what was recorded?

Start with `registry.py`, the table of formats, and `importing.py`, what each of them gives. A
format of operations reads its files into an `OpSpool` (`op_spool.py`, `spooled_import.py`), so
that neither size nor order of the files costs memory. The CLI's import and export and the API's
upload routes import it.
"""
