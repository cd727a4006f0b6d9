"""How does one job look? The charts and the headline of a job's page.

Start with `window_charts.py`: every chart that a window's result can draw, by name. `headline.py`
has the sentences. Pages of one worker, of the fleet and of reports import from here.
"""
