"""Entries of the queue in parts that fit into memory."""

from collections.abc import Iterator

from app.ingest.inflate import decoded_bytes
from app.ingest.queue import Entry

TURN_BYTES = 64 << 20  # of columns as they are worked with
# A row that came packed, all fourteen columns in a byte each, takes 106. Whether an entry is packed
# cannot be told before it is read, so it is taken to be.
WIDENED = 8


def in_parts(entries: list[Entry]) -> Iterator[list[Entry]]:
    """The entries in their order, as many at once as fit into memory when they are opened."""
    part: list[Entry] = []
    room = TURN_BYTES
    for entry in entries:
        size = decoded_bytes(entry.body) * WIDENED
        if part and size > room:
            yield part
            part, room = [], TURN_BYTES
        part.append(entry)
        room -= size
    if part:
        yield part
