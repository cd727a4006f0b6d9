"""Names of environment variables: a misspelt one must not be silently ignored."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from app.errors import StartUpFailed

PREFIX = "PACELINE_"
# Read by other parts than the service, which may share its environment: the recorder and the
# commands that push, ops/, docker-compose.yml, and tests.
NAMES_OF_OTHERS = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *("URL", "JOB", "RUN_KEY", "GROUP_EVERY", "RACK", "SWITCH", "EXIT_REPORTS"),
        *("ENV_FILE", "BIND"),
        *("TEST_CHROMIUM", "TEST_PG_URL"),
    )
)


def check_names(environment: Iterable[str], settings: Collection[str]) -> None:
    """Check that every name that begins with `PREFIX` is a setting, or read by another part.

    Raises:
        StartUpFailed: one is not; the message has the nearest setting.
    """
    given = {name.upper(): name for name in environment if name.upper().startswith(PREFIX)}
    unknown = sorted(given.keys() - settings - NAMES_OF_OTHERS)
    if unknown:
        raise StartUpFailed("; ".join(_complaint(given[name], settings) for name in unknown))


def _complaint(name: str, settings: Collection[str]) -> str:
    known = sorted(each.removeprefix(PREFIX) for each in settings)
    nearest = get_close_matches(name.upper().removeprefix(PREFIX), known, n=1)
    meant = f"did you mean {PREFIX}{nearest[0]}?" if nearest else "docs/settings.md lists all"
    return f"{name} is no setting: {meant}"
