"""Every kind of receiver, and a notice as the one of an endpoint understands it."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from app.alerts.endpoint import Endpoint, Format
from app.alerts.formats import (
    alertmanager,
    alertmanager_push,
    cloudevents,
    email,
    pagerduty,
    slack,
    standard,
)
from app.alerts.formats.fitting import fitted, tidied
from app.alerts.message import Message
from app.alerts.notice import Notice, NoticeKind

# With texts of so many characters it is 1 MB at the very worst, and usually 60 kB.
MAX_PUSHED = 50
_MOST_CHARS_PUSHED = 250

FORMATS: Mapping[Format, Callable[[Notice, Endpoint], Message]] = {
    "standard": standard.render,
    "alertmanager": alertmanager.render,
    "alertmanager-push": alertmanager_push.render,
    "pagerduty": pagerduty.render,
    "slack": slack.render,
    "cloudevents": cloudevents.render,
    "email": email.render,
}
# Others have no word for it, or no need of it: that a person has seen the alert, that it fires on.
_ONLY_FOR: Mapping[NoticeKind, Format] = {
    "acknowledged": "pagerduty",
    "refresh": "alertmanager-push",
}


def is_told(format_: Format, kind: NoticeKind) -> bool:
    """Whether receivers of this format are told such a thing at all."""
    return _ONLY_FOR.get(kind, format_) == format_


def knows_each_alert(format_: Format) -> bool:
    """Whether receivers keep a state for each alert, and are told of each that is news.

    Others keep one for the whole group, or none: they get a message for people.
    """
    return format_ == "alertmanager-push"


def refresh_every_s(formats: Iterable[Format]) -> float | None:
    """How often these receivers are to hear of what fires; None where once is enough."""
    forgets = any(map(knows_each_alert, formats))
    return alertmanager_push.REFRESH_EVERY_S if forgets else None


def render(notice: Notice, endpoint: Endpoint) -> Message:
    """What the endpoint gets: of as many alerts, and as much of texts, as fit into 20 kB.

    One that knows each alert gets all of them, which are `MAX_PUSHED` at most. The same notice
    always gives the same message.
    """
    if knows_each_alert(endpoint.format):
        return _rendered(tidied(notice, MAX_PUSHED, _MOST_CHARS_PUSHED), endpoint)
    return fitted(notice, partial(_rendered, endpoint=endpoint))


def _rendered(notice: Notice, endpoint: Endpoint) -> Message:
    return FORMATS[endpoint.format](notice, endpoint)
