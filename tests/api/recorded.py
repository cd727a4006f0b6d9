"""Small recorded windows in the store."""

import dataclasses
from typing import Any

from app.monitor import observe
from app.result.stored import split_by_step
from app.trace.window import SkippedStep, Window, WindowState
from tests import window_factory
from tests.api.server import Api, recorded_record
from tests.engine.questions.jobs import two_stages


def window(
    first_step: int = 0,
    *,
    epoch: int = 1,
    state: WindowState = "complete",
    skipped: tuple[SkippedStep, ...] = (),
    **changes: Any,
) -> Window:
    """Two steps of 7.5 s on 2 x 2 workers."""
    rows = [*two_stages(2, step=first_step), *two_stages(2, step=first_step + 1)]
    made = window_factory.window(rows, dp_size=2, pp_size=2, state=state, skipped=skipped)
    return dataclasses.replace(made, epoch=epoch, **changes)


def save(api: Api, *windows: Window) -> None:
    """Save windows of the job llm-70b, as the consumer does."""
    for each in windows:
        api.save_window(recorded_record(each))


def save_observed(api: Api, *windows: Window) -> None:
    """Save windows with their findings."""
    for each in windows:
        result, per_step = split_by_step(observe(each).result)
        found = dataclasses.replace(recorded_record(each), result=result, per_step=per_step)
        api.save_window(found)
