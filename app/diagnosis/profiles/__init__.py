"""What do plain torch.profiler files of some ranks show: step time, waits and culprits?

Read `job.py` first, which joins the ranks' files; `gpu_time.py` splits a step, `causes.py` finds
the culprits, `result.py` makes the result.
Imported by: cli.
"""
