"""How do all jobs and hosts do together?

Read `fleet.py` first; `metrics.py` has the same figures for Prometheus.
"""
