"""When does an alert fire, who is notified of it, and in which words?

Read `rules/evaluation.py` first (windows to alerts), then `planning.py` (alerts to
notifications) and `sending.py` (one delivery attempt).
Imported by: api, cli, consumer, monitor, settings, store, watch.
"""
