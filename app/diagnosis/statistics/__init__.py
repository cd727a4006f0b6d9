"""When did a series change, does the change last, and is it chance?

Read `change_points.py` first. Statistics of plain arrays, without knowledge of jobs.
Imported by: diagnosis.
"""
