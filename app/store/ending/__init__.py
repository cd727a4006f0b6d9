"""How runs end, by the reports of their ranks.

Read `exits.py` first: it saves a report, and decides how the job has ended (app/trace/exits.py).
Imported by: api, consumer.
"""
