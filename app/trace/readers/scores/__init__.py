"""How are reports of tools read that score ranks without recording operations?

Read `score_report.py` first: the report that every such format gives. `nvrx.py`, `megatron_log.py`
and `nccl_inspector.py` are the formats.
Imported by: api, cli, store, trace.
"""
