"""How should sequences of uneven length be distributed over ranks and micro-batches?

Read `balance.py` first (dp ranks), then `packing.py` (micro-batches) and `sharding.py` (context
parallelism). All are plain arrays and lists: no window, no replay.
Imported by: advice.
"""
