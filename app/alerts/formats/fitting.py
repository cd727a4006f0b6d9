"""A notice small enough for any receiver: first fewer alerts in it, then shorter texts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from app.alerts.alert import Blame, Detail
from app.alerts.formats.text import one_line, tidy
from app.alerts.matchers import BUILT_IN
from app.alerts.message import MAX_BYTES, Message
from app.alerts.notice import MAX_TOLD, Notice, Told
from app.alerts.rule import MAX_RUNBOOK_CHARS

# Alerts listed, and characters of each text, from which a notice is first fitting.
_SIZES = (
    *((num_alerts, 500) for num_alerts in (MAX_TOLD, 15, 10, 7, 5, 3, 2, 1)),
    *((1, most_chars) for most_chars in (250, 120, 60, 30)),
)
_MAX_NAMES = 10
_MAX_CULPRITS = 5
# Names keep what tells them apart also where sentences are cut.
_MIN_NAME_CHARS = 60
# All labels of an alert together. Not part of `_SIZES`: some receivers know an alert by its labels,
# which therefore have to be the same whatever else is in a message.
_MAX_LABELS_BYTES = 2000
_MAX_LABEL_CHARS = 256


def fitted(notice: Notice, render: Callable[[Notice], Message]) -> Message:
    """The message of as much of the notice as fits."""
    message = None
    for smaller in _smaller(notice):
        message = render(smaller)
        if message.num_bytes <= MAX_BYTES:
            break
    if message is None or message.num_bytes > MAX_BYTES:
        raise AssertionError("a notice of one alert with short texts fits")
    return message


def tidied(notice: Notice, num_alerts: int = MAX_TOLD, most_chars: int = 500) -> Notice:
    """The notice with so many alerts at most, and all texts from outside harmless and short."""
    kept = notice.alerts[:num_alerts]
    name_chars = max(most_chars // 2, _MIN_NAME_CHARS)
    return replace(
        notice,
        job_name=None if notice.job_name is None else one_line(notice.job_name, name_chars),
        sentence=one_line(notice.sentence, most_chars),
        sub=one_line(notice.sub, most_chars),
        alerts=[_told(alert, most_chars) for alert in kept],
        num_more=notice.num_more + len(notice.alerts) - len(kept),
        page_url=_url(notice.page_url),
        image_url=_url(notice.image_url),
        runbook_url=_url(notice.runbook_url),
        base_url=_url(notice.base_url),
        group_key=one_line(notice.group_key, MAX_RUNBOOK_CHARS),
        group_labels=_labels(notice.group_labels),
    )


def _smaller(notice: Notice) -> Iterator[Notice]:
    for num_alerts, most_chars in _SIZES:
        yield tidied(notice, num_alerts, most_chars)


def _told(alert: Told, most_chars: int) -> Told:
    return replace(
        alert,
        labels=_labels(alert.labels),
        known_as=_labels(alert.known_as),
        sentence=one_line(alert.sentence, most_chars),
        detail=_detail(alert.detail, most_chars),
        was=None if alert.was is None else _detail(alert.was, most_chars),
        runbook_url=_url(alert.runbook_url),
    )


def _detail(detail: Detail, most_chars: int) -> Detail:
    names = [one_line(name, _MIN_NAME_CHARS) for name in detail.names[:_MAX_NAMES]]
    blame = None if detail.blame is None else _blame(detail.blame, most_chars)
    return replace(detail, names=names, blame=blame)


def _blame(blame: Blame, most_chars: int) -> Blame:
    culprits: Sequence[Mapping[str, object]] = blame.culprits[:_MAX_CULPRITS]
    return replace(
        blame,
        cause=one_line(blame.cause, _MIN_NAME_CHARS),
        sentence=one_line(blame.sentence, most_chars),
        culprits=tidy(list(culprits), _MIN_NAME_CHARS),
        num_culprits=max(blame.num_culprits, len(blame.culprits)),
    )


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Built-in labels before others, by name, up to a size that is the alert's own."""
    kept: dict[str, str] = {}
    room = _MAX_LABELS_BYTES
    for name in sorted(labels, key=_label_order):
        value = one_line(str(labels[name]), _MAX_LABEL_CHARS)
        room -= len(name.encode(errors="replace")) + len(value.encode()) + 8
        if value and room >= 0:
            kept[one_line(name, _MAX_LABEL_CHARS)] = value
    return kept


def _label_order(name: str) -> tuple[bool, str]:
    return name not in BUILT_IN, name


def _url(url: str | None) -> str | None:
    """The address, left out where it is longer than a rule's may be: cut it would be none."""
    if url is None or len(url) > MAX_RUNBOOK_CHARS or not url.startswith(("https://", "http://")):
        return None
    return url if url == one_line(url, len(url)) else None
