"""Confidence of a finding as the share of such findings that are right.

A detector's own figure says how far its evidence is beyond chance. How often findings with that
figure are right, by cause and feed, is counted on jobs of a generator on which no detector was
tuned, smoothed by isotonic regression and kept in `CALIBRATION`
(app/diagnosis/calibration_table.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import numpy as np

from app.diagnosis.calibration_table import CALIBRATION
from app.trace.window import Window

# No finding is certain, and none is shown as 100 %.
MAX_CONFIDENCE = 0.99

_IS_OWN = ContextVar("is_own", default=False)


@contextmanager
def own_confidences() -> Iterator[None]:
    """Findings in this block have the detectors' own figures, from which the table is made."""
    token = _IS_OWN.set(True)
    try:
        yield
    finally:
        _IS_OWN.reset(token)


# How a window came: from clients, whose clocks say when steps began, or from a trace of durations.
Feed = Literal["client", "trace"]
# The rows for both, where one has too few findings.
ANY_FEED = "any"


def feed_of(window: Window) -> Feed:
    """The feed of a window's operations."""
    return "trace" if window.origin_ns is None else "client"


def calibrated(cause: str, figure: float, feed: Feed) -> float:
    """The share of findings of this cause with this figure that are right, 0..1.

    The detector's own figure where too few such findings were counted: a cause without a row, or a
    figure below those of its row.

    Args:
        cause: the finding's.
        figure: the detector's own confidence, 0..1.
        feed: of the window.
    """
    by_feed = CALIBRATION.get(cause, {})
    points = by_feed.get(feed, by_feed.get(ANY_FEED))
    if _IS_OWN.get() or points is None:
        return figure
    if figure < points[0][0]:
        return min(figure, points[0][1])
    figures, shares = zip(*points, strict=True)
    return min(MAX_CONFIDENCE, float(np.interp(figure, figures, shares)))
