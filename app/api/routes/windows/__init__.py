"""What did the analysis find in one job?

Read `windows.py` first; charts, timelines and what-ifs build on it.
Imported by: api, cli.
"""
