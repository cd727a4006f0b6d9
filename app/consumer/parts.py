"""Entries of the queue in parts that fit into memory."""

from collections.abc import Iterator

from app.ingest.inflate import decoded_bytes, encoding_in
from app.ingest.queue import Entry

TURN_BYTES = 64 << 20  # of opened batches
# What is compressed may be packed, too: a client does both. Its 16 bytes an operation become 36.
WIDENED = 3


def in_parts(entries: list[Entry]) -> Iterator[list[Entry]]:
    """The entries in their order, as many at once as fit into memory when they are opened."""
    part: list[Entry] = []
    room = TURN_BYTES
    for entry in entries:
        size = decoded_bytes(entry.body) * (WIDENED if encoding_in(entry.body) else 1)
        if part and size > room:
            yield part
            part, room = [], TURN_BYTES
        part.append(entry)
        room -= size
    if part:
        yield part
