"""What does an analysis say? The result of a window as records, and several windows as one.

Read `window_result.py` first (every field, with its meaning), then `join.py`. `recent.py` and
`thin.py` are of parts of a run. Nothing here analyses, stores or draws.
Imported by: advice, alerts, api, charts, cli, consumer, diagnosis, engine, monitor, store, synth,
watch.
"""
