"""What do all charts share? Figures and axes as plain data, bars, heatmaps and colours.

Read `figure.py` first.
Imported by: api, charts, cli.
"""
