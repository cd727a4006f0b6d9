"""What would the workers of a job with a known fault have recorded?

Read `job.py` first, then `truth.py`. The simulation shares no code with the engine that analyses
it.
Imported by: advice, cli, watch.
"""
