"""What do a window's operations show that a cause could explain?

Read `features.py` first. `Case` (case.py) computes features, outliers, links and slowness; the
other files hold evidence of one or two detectors.
Imported by: advice, api, diagnosis.
"""
