"""The event queue of `paceline serve`: a Valkey or Redis server as a child process.

Read `queue.py` first.
"""
