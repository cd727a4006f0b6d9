"""How does `paceline serve` run its event queue, a Valkey or Redis child process?

Read `queue.py` first.
Imported by: cli.
"""
