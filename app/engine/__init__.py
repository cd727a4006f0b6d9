"""How slow is the job, compared with the same steps without stragglers?

Read `replays.py` first (`prepare` makes a window replayable), then `what_if.py` (`Replayer`) and
`report.py` (all figures).
Imported by: advice, api, charts, cli, consumer, diagnosis, ingest, main, monitor.
"""
