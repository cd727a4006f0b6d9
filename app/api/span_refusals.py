"""Why spans are refused, in the log: Python's exporter shows its users nothing of the answer."""

import re
import time
from collections import Counter
from collections.abc import Callable

import structlog

log = structlog.get_logger()

WITHIN_S = 60.0
MOST_REASONS = 10  # of a project, within this time: callers can make up new ones
_MAX_REASON = 300
# By what is left, "step 5 has ..." and "step 6 has ..." are one reason.
_NUMBERS = re.compile(r"\d+")


class SpanRefusals:
    """Warns of each reason once a minute for each project; call from the event loop."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until_s = 0.0
        self._told: dict[str, set[str]] = {}

    def tell(self, project: str, reasons: Counter[str]) -> None:
        """Warn of what was not told within this minute; `reasons` are numbers of spans."""
        if self._monotonic() >= self._until_s:
            self._until_s = self._monotonic() + WITHIN_S
            self._told.clear()
        for reason, number in reasons.most_common(MOST_REASONS):
            if self._is_news(project, reason):
                log.warning(
                    "spans rejected", project=project, spans=number, reason=reason[:_MAX_REASON]
                )

    def _is_news(self, project: str, reason: str) -> bool:
        told, kind = self._told.setdefault(project, set()), _NUMBERS.sub("", reason[:_MAX_REASON])
        is_news = kind not in told and len(told) < MOST_REASONS
        if is_news:
            told.add(kind)
        return is_news
