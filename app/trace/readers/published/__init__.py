"""How is the published trace format read and written? Parquet files of operations and collectives.

Start with `trace_files.py`: `read` gives a window, `write` takes a trace. `meta.py` is the YAML
file about the job.
"""
