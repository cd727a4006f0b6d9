"""Counts of the whole service that no process may forget; they only grow."""

from sqlalchemy import Connection, select

from app.store.tables import totals
from app.store.upsert import insert

PART = "/"  # between a count's name and whose part of it this is


def add(conn: Connection, name: str, n: int) -> None:
    """Count `n` more."""
    statement = insert(conn, totals).values(name=name, value=n)
    more = {"value": totals.c.value + statement.excluded.value}
    conn.execute(statement.on_conflict_do_update(index_elements=[totals.c.name], set_=more))


def all(conn: Connection) -> dict[str, int]:  # noqa: A001 - totals.all is what it is
    """Every count of the service by its name; those of single projects or entries are left out."""
    rows = conn.execute(select(totals).order_by(totals.c.name))
    return {row.name: row.value for row in rows if row.name.isidentifier()}


def parts(conn: Connection, whose: str) -> dict[str, int]:
    """The counts of one project by their names, without its own."""
    end = f"{PART}{whose}"
    rows = conn.execute(select(totals).where(totals.c.name.endswith(end, autoescape=True)))
    return {row.name.removesuffix(end): row.value for row in rows}


def all_parts(conn: Connection) -> dict[str, int]:
    """The counts of single projects, summed over all of them, by their names."""
    sums: dict[str, int] = {}
    for row in conn.execute(select(totals).where(totals.c.name.like(f"%{PART}%"))):
        name = row.name.partition(PART)[0]
        sums[name] = sums.get(name, 0) + row.value
    return sums
