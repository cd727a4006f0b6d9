"""Keys that all processes of the service share, each made once, by whoever needs it first."""

import secrets

from sqlalchemy import Connection, select

from app.store.tables import service_keys
from app.store.upsert import add_new

_KEY_BYTES = 32


def find(conn: Connection, name: str) -> bytes | None:
    """The key of this name; None if nobody has needed it yet."""
    query = select(service_keys.c.key).where(service_keys.c.name == name)
    found: bytes | None = conn.execute(query).scalar_one_or_none()
    return found


def find_or_make(conn: Connection, name: str) -> bytes:
    """The same, made now if there is none; of several that make it at once, all get one."""
    known = find(conn, name)
    if known is not None:
        return known
    add_new(conn, service_keys, [{"name": name, "key": secrets.token_bytes(_KEY_BYTES)}])
    made = find(conn, name)
    if made is None:
        raise AssertionError("the key was just made")
    return made
