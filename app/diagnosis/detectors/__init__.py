"""Which causes are known, and what does each look like? One file each.

Read slow_worker.py first. Only diagnose.py imports this package.
"""
