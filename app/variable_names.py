"""Names of environment variables: a misspelt one must not be silently ignored.

Kubernetes gives every pod variables about each Service of its namespace ("service links"), which
begin like settings where the Service is called `paceline` or `paceline-...`.
"""

import re
from collections.abc import Collection, Mapping
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
# Of the Service `paceline-api`: PACELINE_API_SERVICE_HOST, PACELINE_API_SERVICE_PORT_HTTP,
# PACELINE_API_PORT_8642_TCP_ADDR, ... One more ends in _PORT: only its value tells that it is one.
_SERVICE_LINK = re.compile(
    rf"{PREFIX}(?:[A-Z0-9_]+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?"
    r"|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_LINK_VALUE = re.compile(r"(?:tcp|udp|sctp)://\S+")
_PORT = "_PORT"


def check_names(environment: Mapping[str, str], settings: Collection[str]) -> None:
    """Check that every name that begins with `PREFIX` is a setting, or read by another part.

    Service links of Kubernetes that are no settings are ignored.

    Raises:
        StartUpFailed: one is not; the message has the nearest setting.
    """
    given = {name.upper(): name for name in environment if name.upper().startswith(PREFIX)}
    unknown = sorted(
        name
        for name in given.keys() - settings - NAMES_OF_OTHERS
        if not _SERVICE_LINK.fullmatch(name)
        and not service_link_complaint(name, environment[given[name]])
    )
    if unknown:
        raise StartUpFailed("; ".join(_complaint(given[name], settings) for name in unknown))


def service_link_complaint(name: str, value: object) -> str | None:
    """The complaint about a setting whose value is a service link of Kubernetes; None if not."""
    if not (name.endswith(_PORT) and isinstance(value, str) and _LINK_VALUE.fullmatch(value)):
        return None
    service = name.removesuffix(_PORT).lower().replace("_", "-")
    return (
        f"{name} is {value}, which Kubernetes sets for the Service {service}: put "
        "enableServiceLinks: false into the pod's spec, or rename the Service"
    )


def _complaint(name: str, settings: Collection[str]) -> str:
    known = sorted(setting.removeprefix(PREFIX) for setting in settings)
    nearest = get_close_matches(name.upper().removeprefix(PREFIX), known, n=1)
    meant = f"did you mean {PREFIX}{nearest[0]}?" if nearest else "docs/settings.md lists all"
    return f"{name} is no setting: {meant}"
