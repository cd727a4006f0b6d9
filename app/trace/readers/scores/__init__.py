"""What do tools say that score ranks without recording operations?

Start with `score_report.py`: the report that every such format gives. One module per format:
`nvrx.py`, `megatron_log.py` and `nccl_inspector.py`.
"""
