"""Which operations does the API have? One noun per file, with its schemas.

Read `jobs/jobs.py` first as an example, then `dependencies.py` for the injected arguments.
`application.py` of the API includes every router.
Imported by: api, cli.
"""
