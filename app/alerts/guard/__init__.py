"""How does a message reach a project's receiver and nothing else (SSRF)?

Read `guard.py` first. Every request of this service to an address that users chose goes
through it.
"""
