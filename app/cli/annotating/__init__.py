"""How do events of a cluster get onto the charts of jobs?

Read `annotate.py` first: one annotation. `kubernetes.py` makes them of a cluster's events.
Imported by: cli.
"""
