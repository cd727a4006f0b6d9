"""How do traces and scores of other tools come into Paceline?

Read `command.py` first.
Imported by: cli.
"""
