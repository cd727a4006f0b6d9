"""What can an alert rule be on?

Read `readings.py` first, then `facts.py`. A reading takes the figures of a rule out of a window's
facts, or says whether data is missing.
Imported by: alerts, api, cli, consumer, monitor.
"""
