"""The store that the settings name, for a command that works on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import StartUpFailed
from app.settings import Settings, load_settings
from app.store.engine import Store, parse_url
from app.store.revision import is_current


@contextmanager
def opened_store(data_dir: Path | None) -> Iterator[tuple[Store, Settings]]:
    """The store and the settings; closed at the end of the block.

    Raises:
        StartUpFailed: there is none, or it has other tables than this version.
        StoreUnavailable: it does not answer.
    """
    settings = load_settings(data_dir=data_dir)
    check_there_is_one(settings)
    if not is_current(settings.store_url):
        raise StartUpFailed("the database has other tables than this version: run paceline migrate")
    store = Store(settings.store_url)
    try:
        yield store, settings
    finally:
        store.close()


def check_there_is_one(settings: Settings) -> None:
    """Returns if there is a store to open; SQLite would say of a missing file only that it failed.

    Raises:
        StartUpFailed: the file is not there.
    """
    parsed = parse_url(settings.store_url)
    path = Path(parsed.database or "")
    if parsed.get_backend_name() == "sqlite" and not path.exists():
        raise StartUpFailed(
            f"no Paceline store in {path.parent}: name its directory with --data-dir or "
            "PACELINE_DATA_DIR; paceline serve or paceline migrate makes a new one"
        )
