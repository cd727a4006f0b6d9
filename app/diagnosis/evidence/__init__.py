"""What do a window's operations show that a cause could explain?

Read `slowness.py` first. Functions marked with `evidence` (case.py) answer once a case.
Imported by: advice, api, diagnosis.
"""
