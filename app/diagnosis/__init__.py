"""Why is the job slow, who is the culprit, since when, and what does it cost?

Read `diagnose.py` first, then `case.py` and `features.py`.
Imported by: advice, api, cli, consumer, main, monitor.
"""
