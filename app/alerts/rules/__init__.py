"""What do rules say, and how do windows move their alerts?

Read `evaluation.py` first: it takes one job's alerts a window further. `state_machine.py` is
one alert, `rule_text.py` the YAML of a project's rules.
"""
