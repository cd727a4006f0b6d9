"""How are results drawn? Pure functions from figures to Plotly figures and sentences.

Read `base/figure.py` first (the form of every chart), then `job/window_charts.py`, the table of a
window's charts. Each other folder is a page.
Imported by: api, cli, consumer.
"""
