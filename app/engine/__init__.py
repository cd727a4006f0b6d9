"""How slow is the job, compared with the same steps without stragglers?

Start with replays.py (`prepare` makes a window replayable), then what_if.py (`Replayer`) and
report.py (all figures). Diagnosis, monitor, charts, store, api and cli may import this package.
"""
