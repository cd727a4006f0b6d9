"""How many matchers a silence or an endpoint may have, and how long ones."""

from collections.abc import Sequence

from app.alerts.matchers import Matcher
from app.errors import InvalidRequest
from app.store.texts import checked

# Each is compared with every alert that is told.
MAX_MATCHERS = 32
MAX_LABEL = 64
MAX_PATTERN = 256


def check_matchers(matchers: Sequence[Matcher]) -> None:
    """See that they can be kept.

    Raises:
        InvalidRequest: there are more, or longer ones, than there may be.
    """
    if len(matchers) > MAX_MATCHERS:
        raise InvalidRequest(f"matchers: want at most {MAX_MATCHERS}")
    for each in matchers:
        checked("label", each.label, MAX_LABEL)
        checked("pattern", each.pattern, MAX_PATTERN)
