"""How does a message reach a project's receiver and nothing else (SSRF)?

Read `guard.py` first. Every request to an address that users chose goes through it.
Imported by: alerts, api, consumer, main.
"""
