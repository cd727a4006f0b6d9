"""Opens the store of the settings, and writes command-line actions to its audit log.

The database is imported when it is needed, so that every command may import this.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from app.errors import StartUpFailed

if TYPE_CHECKING:
    from app.settings import Settings
    from app.store.database import Connection, Store

RowT = TypeVar("RowT")


@contextmanager
def open_store(data_dir: Path | None) -> "Iterator[tuple[Store, Settings]]":
    """The store and the settings; closed at the end of the block."""
    from app.settings import load_settings
    from app.store.database import Store, is_migrated

    settings = load_settings(data_dir=data_dir)
    check_store_exists(settings)
    if not is_migrated(settings.store_url):
        raise StartUpFailed("the database's tables are of another version: run paceline migrate")
    with closing(Store(settings.store_url, keys=settings.secret_keys())) as store:
        yield store, settings


def rows_of_pages(
    store: "Store", read_page: "Callable[[Connection, str | None], tuple[list[RowT], str | None]]"
) -> Iterator[RowT]:
    """The rows of all pages; `read_page` takes a cursor, None at first, and gives the next one."""
    cursor, has_more = None, True
    while has_more:
        with store.read() as conn:
            rows, cursor = read_page(conn, cursor)
        yield from rows
        has_more = cursor is not None


def check_store_exists(settings: "Settings") -> None:
    """Check that the store exists; SQLite's error for a missing file is unclear."""
    from app.store.database import parse_url

    parsed = parse_url(settings.store_url)
    path = Path(parsed.database or "")
    if parsed.get_backend_name() == "sqlite" and not path.exists():
        raise StartUpFailed(
            f"no Paceline store in {path.parent}: name its directory with --data-dir or "
            "PACELINE_DATA_DIR, or create one with paceline serve or paceline migrate"
        )


def locked_secrets(settings: "Settings") -> str | None:
    """Which keys the stored secrets lack, in a sentence; None if all can be read."""
    from app.store.credentials import resealing
    from app.store.database import Store

    keys = settings.secret_keys()
    with closing(Store(settings.store_url, keys=keys)) as store, store.read() as conn:
        counts = resealing.count(conn)
    if not counts.locked:
        return None
    needed = ", ".join(sorted(counts.by_key.keys() - keys.ids))
    return (
        f"{counts.locked} secrets cannot be read, as their key is not here ({needed}): "
        "add it to PACELINE_SECRET_KEY, behind the newest"
    )


CLI_ACTOR = "command line"


def audit_action(
    conn: "Connection", project: str, action: str, object_id: str, **detail: Any
) -> None:
    """Write an action of the command line to the audit log, for example "token.create"."""
    from app.store import audit

    audit.add(
        conn,
        project=project,
        at_s=time.time(),
        actor=CLI_ACTOR,
        action=action,
        object_kind=action.partition(".")[0],
        object_id=object_id,
        detail=detail,
    )
