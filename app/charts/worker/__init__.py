"""Which worker is slow? The worker heatmap, and the page of one worker.

Read `heatmap.py` first.
Imported by: api, charts.
"""
