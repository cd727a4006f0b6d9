"""How do traces and scores of other tools come into Paceline?

Read `command` first. Only `app.cli` imports this package.
"""
