"""What can be done about a slow job, and what does each fix win?

Read `fix.py` first (the input and output of every fix), then `advise.py`, which asks them all. Each
other file is one fix; `signs.py` and `outcome.py` determine afterwards whether it was applied and
its achieved gain. docs/advice.md has the methods and their limits.
Imported by: api, cli, consumer, monitor, store.
"""
