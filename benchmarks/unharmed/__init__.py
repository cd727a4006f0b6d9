"""Do trainings end as they would without Paceline, whatever breaks?

Read `command.py`; `cases.py` has faults and places, `training.py` is what runs.
"""
