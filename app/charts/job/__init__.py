"""What does a job's page show? Its charts and its headline.

Read `window_charts.py` first: every chart of a window's result, by name. `headline.py` has the
sentences.
Imported by: api, charts, cli.
"""
