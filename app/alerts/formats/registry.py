"""Every format of receivers, and a notice rendered for one receiver."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from app.alerts.formats import alertmanager, email, pagerduty, slack, webhooks
from app.alerts.formats.text import fit_notice, shorten_notice
from app.alerts.notice import Message, Notice, NoticeKind
from app.alerts.receiver import FORMATS_WITH_ONE_INCIDENT, Format, Receiver

# With texts of so many characters it is 1 MB at the very worst, and usually 60 kB.
MAX_PUSHED = 50
_MAX_PUSHED_CHARS = 250

RENDERERS: Mapping[Format, Callable[[Notice, Receiver], Message]] = {
    "standard": webhooks.render_standard,
    "alertmanager": alertmanager.render_alertmanager,
    "alertmanager-push": alertmanager.render_alertmanager_push,
    "pagerduty": pagerduty.render_pagerduty,
    "slack": slack.render_slack,
    "cloudevents": webhooks.render_cloudevents,
    "email": email.render_email,
    "healthchecks": webhooks.render_healthchecks,
}
# Kinds that only one format can express.
_ONLY_FORMAT: Mapping[NoticeKind, Format] = {
    "acknowledged": "pagerduty",
    "refresh": "alertmanager-push",
}


def format_takes(format_: Format, kind: NoticeKind) -> bool:
    """Whether receivers of this format get notices of this kind."""
    if format_ == "healthchecks":
        return kind in webhooks.PING_PATHS
    if kind == "fix-outcome":
        # It is no incident, and nothing would ever resolve it.
        return format_ not in FORMATS_WITH_ONE_INCIDENT
    return _ONLY_FORMAT.get(kind, format_) == format_


def knows_each_alert(format_: Format) -> bool:
    """Whether receivers of this format keep a state per alert.

    Others keep one for the whole group, or none: they get a message for people.
    """
    return format_ == "alertmanager-push"


def refresh_every_s(formats: Iterable[Format]) -> float | None:
    """How often these receivers need a refresh of what fires; None: never."""
    return alertmanager.REFRESH_EVERY_S if any(map(knows_each_alert, formats)) else None


def render_notice(notice: Notice, receiver: Receiver) -> Message:
    """The message for the receiver: as many alerts, and as much text, as fit into 20 kB.

    A receiver that knows each alert gets all of them, at most `MAX_PUSHED`. The same notice always
    gives the same message.
    """
    if knows_each_alert(receiver.format):
        return _render(shorten_notice(notice, MAX_PUSHED, _MAX_PUSHED_CHARS), receiver)
    return fit_notice(notice, partial(_render, receiver=receiver))


def _render(notice: Notice, receiver: Receiver) -> Message:
    return replace(RENDERERS[receiver.format](notice, receiver), kind=notice.kind)
