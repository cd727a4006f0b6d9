"""When did a series change, does it last, and what is chance?

Statistics of plain arrays, without knowledge of jobs. Read change_points.py first. Diagnosis and
the readings of alert rules import this package.
"""
