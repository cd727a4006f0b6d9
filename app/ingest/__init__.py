"""How do batches come in, wait in the event queue, and become windows?

Read `batch.py` first, then `wire/codec.py` (body to batch), `queue.py` (the queue's contract) and
`assembly/assembler.py` (batches to windows). Only this package uses Redis.
Imported by: api, cli, consumer, main.
"""
