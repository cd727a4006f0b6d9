"""What do all jobs and hosts together lose, and which lose most?

Read `fleet.py` first; `metrics.py` has the same figures for Prometheus.
Imported by: api.
"""
