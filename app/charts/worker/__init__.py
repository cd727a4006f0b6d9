"""Which worker is slow? The worker heatmap, and the page of one worker.

Start with `heatmap.py`. The job's charts, the reports and the API import it.
"""
