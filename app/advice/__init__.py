"""What can be done about a slow job, and what does each fix win?

Read `fix.py` first (what every fix is given and tells), then `advise.py`, which asks them all. Each
other file is one fix. docs/advice.md has the methods and their limits.
Imported by: api, cli, monitor.
"""
