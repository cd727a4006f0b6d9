"""A notice made safe and small enough for any receiver: fewer alerts first, then shorter texts.

Text from outside is put on one line, without invisible characters and without links.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from app.alerts.alert import Blame, Detail, SuggestedFix
from app.alerts.labels import BUILT_IN_LABELS
from app.alerts.notice import MAX_LISTED_ALERTS, MAX_MESSAGE_BYTES, Message, Notice, NoticeAlert
from app.alerts.rule import MAX_RUNBOOK_CHARS

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
# Kept although they cannot be seen: some scripts, and compound emoji, are wrong without.
_JOINERS = "\u200c\u200d"
# Around a name from outside, these keep its direction inside; harmless as long as they are paired.
_ISOLATE, _END_ISOLATE = "\u2068", "\u2069"
_ISOLATES = re.compile(f"[{_ISOLATE}{_END_ISOLATE}]")
_ALLOWED_INVISIBLE = frozenset(_JOINERS + _ISOLATE + _END_ISOLATE)
# Texts that mailboxes and chats turn into links in every format. They may link a bare name all the
# same: it cannot be told from a host's.
_LINKS = re.compile(
    r"(?i)(?P<scheme>[a-z][a-z0-9+.-]{0,30})://|\b(?P<plain>mailto|tel|data):|\bwww\."
)
# Characters that take a line of their own; of control characters only these separate words.
_LINE_BREAKS = frozenset("\t\n\v\f\r\x85\u2028\u2029")


def one_line(text: str, most_chars: int) -> str:
    """The text on one line of at most so many characters.

    Marks that turn the direction of text, and other invisible characters, are left out: a name
    must not be able to look like another, or like the words around it.
    """
    # A name of a million characters is not looked at as a whole; some of these may fall away.
    looked_at = text[: 4 * most_chars + 16]
    shown = "".join(map(_visible, looked_at)).strip()
    if len(shown) > most_chars or len(looked_at) < len(text):
        shown = shown[: most_chars - 1].rstrip() + ELLIPSIS
    return shown if _is_paired(shown) else _ISOLATES.sub("", shown)


def defang_links(text: str) -> str:
    """The text with every address in it written so that it cannot be clicked: https[:]//..."""
    return _LINKS.sub(_defanged, text)


def _defanged(link: re.Match[str]) -> str:
    if link["scheme"]:
        return f"{link['scheme']}[:]//"
    return f"{link['plain']}[:]" if link["plain"] else f"{link[0][:-1]}[.]"


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Apply `change` to every string of plain data, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_texts(key, change): map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(item, change) for item in value]
    return value


def _visible(char: str) -> str:
    if char in _LINE_BREAKS:
        return " "
    category = unicodedata.category(char)
    if category == "Cs":  # half a character, which no encoding takes
        return "\N{REPLACEMENT CHARACTER}"
    hidden = category in ("Cc", "Cf", "Zl", "Zp") and char not in _ALLOWED_INVISIBLE
    return "" if hidden else char


def _is_paired(text: str) -> bool:
    depth = 0
    for mark in _ISOLATES.findall(text):
        depth += 1 if mark == _ISOLATE else -1
        if depth < 0:
            return False
    return depth == 0


# Alerts listed, and characters of each text, from which a notice is first fitting.
_SIZES = (
    *((num_alerts, 500) for num_alerts in (MAX_LISTED_ALERTS, 15, 10, 7, 5, 3, 2, 1)),
    *((1, most_chars) for most_chars in (250, 120, 60, 30)),
)
_MAX_NAMES = 10
_MAX_CULPRITS = 5
# Names keep what tells them apart also where sentences are cut.
_MIN_NAME_CHARS = 60
# All labels of an alert together. Not part of `_SIZES`: some receivers identify an alert by its
# labels, which therefore have to be the same in every message.
_MAX_LABELS_BYTES = 2000
_MAX_LABEL_CHARS = 256


def fit_notice(notice: Notice, render: Callable[[Notice], Message]) -> Message:
    """The message of as much of the notice as fits."""
    for num_alerts, most_chars in _SIZES:
        message = render(shorten_notice(notice, num_alerts, most_chars))
        if message.num_bytes <= MAX_MESSAGE_BYTES:
            return message
    raise AssertionError("a notice of one alert with short texts fits")


def shorten_notice(
    notice: Notice, num_alerts: int = MAX_LISTED_ALERTS, most_chars: int = 500
) -> Notice:
    """The notice with so many alerts at most, and all texts from outside harmless and short."""
    listed = notice.alerts[:num_alerts]
    name_chars = max(most_chars // 2, _MIN_NAME_CHARS)
    return replace(
        notice,
        job_name=_one_line_or_none(notice.job_name, name_chars),
        sentence=one_line(notice.sentence, most_chars),
        sub=one_line(notice.sub, most_chars),
        alerts=[_notice_alert(alert, most_chars) for alert in listed],
        num_more=notice.num_more + len(notice.alerts) - len(listed),
        page_url=_url(notice.page_url),
        image_url=_url(notice.image_url),
        runbook_url=_url(notice.runbook_url),
        base_url=_url(notice.base_url),
        group_key=one_line(notice.group_key, MAX_RUNBOOK_CHARS),
        group_labels=_labels(notice.group_labels),
    )


def _notice_alert(alert: NoticeAlert, most_chars: int) -> NoticeAlert:
    name_chars = max(most_chars // 2, _MIN_NAME_CHARS)
    return replace(
        alert,
        labels=_labels(alert.labels),
        known_as=_labels(alert.known_as),
        sentence=one_line(alert.sentence, most_chars),
        detail=_detail(alert.detail, most_chars),
        was=None if alert.was is None else _detail(alert.was, most_chars),
        assigned_to=_one_line_or_none(alert.assigned_to, name_chars),
        note=_one_line_or_none(alert.note, most_chars),
        runbook_url=_url(alert.runbook_url),
    )


def _one_line_or_none(text: str | None, most_chars: int) -> str | None:
    return None if text is None else one_line(text, most_chars)


def _detail(detail: Detail, most_chars: int) -> Detail:
    names = tuple(one_line(name, _MIN_NAME_CHARS) for name in detail.names[:_MAX_NAMES])
    blame = None if detail.blame is None else _blame(detail.blame, most_chars)
    fix = None if detail.fix is None else _fix(detail.fix, most_chars)
    return structs.replace(detail, names=names, blame=blame, fix=fix)


def _fix(fix: SuggestedFix, most_chars: int) -> SuggestedFix:
    """The fix with a short title; a command that would be cut is left out, as half is none."""
    command = fix.command
    if command is not None and command != one_line(command, most_chars):
        command = None
    label = None if command is None else one_line(fix.command_label or "", most_chars)
    title = one_line(fix.title, most_chars)
    return structs.replace(fix, title=title, command=command, command_label=label)


def _blame(blame: Blame, most_chars: int) -> Blame:
    return structs.replace(
        blame,
        cause=one_line(blame.cause, _MIN_NAME_CHARS),
        sentence=one_line(blame.sentence, most_chars),
        culprits=tuple(
            structs.replace(culprit, host=_one_line_or_none(culprit.host, _MIN_NAME_CHARS))
            for culprit in blame.culprits[:_MAX_CULPRITS]
        ),
        num_culprits=max(blame.num_culprits, len(blame.culprits)),
    )


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Built-in labels before others, by name, up to a size that is the alert's own."""
    kept: dict[str, str] = {}
    room = _MAX_LABELS_BYTES
    for name in sorted(labels, key=lambda name: (name not in BUILT_IN_LABELS, name)):
        value = one_line(str(labels[name]), _MAX_LABEL_CHARS)
        room -= len(name.encode(errors="replace")) + len(value.encode()) + 8
        if value and room >= 0:
            kept[one_line(name, _MAX_LABEL_CHARS)] = value
    return kept


def _url(url: str | None) -> str | None:
    """The address, left out where it is longer than a rule's may be: cut it would be none."""
    if url is None or len(url) > MAX_RUNBOOK_CHARS or not url.startswith(("https://", "http://")):
        return None
    return url if url == one_line(url, len(url)) else None
