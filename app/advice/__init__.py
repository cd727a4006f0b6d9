"""What can be done about a slow job, and what does each fix win?

Read `fix.py` first (what every fix is given and tells), then `advise.py`, which asks them all. Each
other file is one fix; `signs.py` and `outcome.py` tell afterwards whether it was applied and what
it has achieved. docs/advice.md has the methods and their limits.
Imported by: api, cli, consumer, monitor, store.
"""
