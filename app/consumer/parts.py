"""Entries of the queue in parts that fit into memory."""

from collections.abc import Iterator

from app.ingest.inflate import decoded_bytes
from app.ingest.queue import Entry

TURN_BYTES = 64 << 20  # of opened batches


def in_parts(entries: list[Entry]) -> Iterator[list[Entry]]:
    """The entries in their order, as many at once as fit into memory when they are opened."""
    part: list[Entry] = []
    room = TURN_BYTES
    for entry in entries:
        size = decoded_bytes(entry.body)
        if part and size > room:
            yield part
            part, room = [], TURN_BYTES
        part.append(entry)
        room -= size
    if part:
        yield part
