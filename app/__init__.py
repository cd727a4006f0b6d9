"""Paceline: why is this training job slow, and what would a fix win?

Read `main.py` first: it builds the API process from its parts. `consumer/main.py` is the analysis
process, `cli/__init__.py` lists the commands. pyproject.toml has the layers of the packages, from
`cli` down to `errors`.
Imported by: nothing.
"""
