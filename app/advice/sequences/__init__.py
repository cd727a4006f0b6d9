"""How should sequences of uneven length be distributed over ranks and micro-batches?

Read `balance.py` first (dp ranks), then `packing.py` (micro-batches) and `sharding.py` (context
parallelism), which know plain arrays only. `microbatch_work.py` reads work from a window.
Imported by: advice.
"""
