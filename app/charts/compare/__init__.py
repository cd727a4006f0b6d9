"""What changed between two windows? The headline, the causes, and both sides as charts.

Read `summary.py` first.
Imported by: api.
"""
