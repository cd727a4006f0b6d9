"""When does an alert fire, who is notified of it, and in which words?

Read first `rules/evaluation.py` (windows to alerts), then `planning/plan.py` (alerts to
notifications) and `sending.py` (one delivery attempt). Plain data and pure functions but for
`sending`, `smtp`, `cordon` and `guard`, which reach the network or start a process. The store,
the consumer and the API import this package; it imports none of them.
"""
