"""What did the workers record?

Read `window.py` first (operations as columns), then `ops.py` (operation types), `collectives.py`
(collectives between ranks) and `job.py` (sizes and names). `readers` reads files.
Imported by: advice, alerts, api, charts, cli, consumer, diagnosis, engine, ingest, monitor, result,
store, synth, watch.
"""
