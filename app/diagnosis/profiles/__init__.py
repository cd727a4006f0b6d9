"""Analysis of plain torch.profiler files of some ranks: step time, waits, and who is to blame.

Start at `job.read`, which brings the ranks' files together; `causes.py` finds who was waited for
and why, `result.py` gives all of it as the JSON object of a result.
"""
