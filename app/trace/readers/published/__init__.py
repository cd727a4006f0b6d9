"""How is the published trace format read and written? Parquet files of operations.

Read `trace_files.py` first: `read` gives a window, `write` takes a trace. `meta.py` is the YAML
file about the job.
Imported by: api, cli, trace.
"""
