"""How do traces of other tools come into Paceline?

Read `command.py` first.
Imported by: cli.
"""
