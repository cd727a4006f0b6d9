"""What did the workers record?

Start with `window.py` (operations as columns) and `ops.py` (operation types). `collectives.py` is
the table of collectives between ranks, `job.py` the job's sizes and names. `readers` reads files
of this and other formats. Every other package may import it; it imports only `app.errors`.
"""
