"""How is the event queue kept in Redis or Valkey: one server, sentinels or a cluster?

Read `queue.py` first; `admission.py` is the API's end, which refuses batches in time.
Imported by: cli, consumer, main.
"""
