"""The store that the settings name, for a command that works on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import StartUpFailed
from app.settings import Settings, load_settings
from app.store.engine import Store
from app.store.migrate import is_current


@contextmanager
def opened_store(data_dir: Path | None) -> Iterator[tuple[Store, Settings]]:
    """The store and the settings; closed at the end of the block.

    Raises:
        StartUpFailed: the database has other tables than this version.
        StoreUnavailable: it does not answer.
    """
    settings = load_settings(data_dir=data_dir)
    if not is_current(settings.store_url):
        raise StartUpFailed("the database has other tables than this version: run paceline migrate")
    store = Store(settings.store_url)
    try:
        yield store, settings
    finally:
        store.close()
