"""What do rules say, and how do windows change their alerts?

Read `evaluation.py` first: it applies one window to a job's alerts. `state_machine.py` is one
alert, `rule_in.py` what a rule may say, `rule_text.py` the YAML of a project's rules.
Imported by: api, cli, consumer, settings, store.
"""
