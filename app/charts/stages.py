"""Stages: the share of the loss that fixing each one alone wins back."""

from collections.abc import Sequence

from app.charts import words
from app.charts.bars import Bar, bar_layout, bar_trace
from app.charts.figure import Figure, meta
from app.charts.theme import SCALE_STOPS, Theme


def stages(
    stage_share: Sequence[float | None], *, theme: Theme, slowdown: float | None = None
) -> Figure:
    """Bars by stage; shares below 0 or above 100 % are shown as they are, with a note why.

    Shares of next to nothing are grey: pass the job's `slowdown` to let the chart tell.
    """
    lost = theme.line2 if slowdown is not None and slowdown < SCALE_STOPS[1] else theme.lost
    bars = [
        Bar(f"stage {stage}", share, lost if (share or 0) > 0 else theme.line2)
        for stage, share in enumerate(stage_share)
    ]
    return Figure(
        data=[bar_trace(bars, theme)],
        layout=bar_layout(bars, theme, row_px=30 if len(bars) <= 8 else 22, full_share=1.0),
        meta=meta(
            _sentence(stage_share),
            ["stage", "share of the loss won back"],
            [[stage, _share(share)] for stage, share in enumerate(stage_share)],
            note=_note(stage_share),
        ),
    )


def best_stage(stage_share: Sequence[float | None]) -> int | None:
    """The stage whose repair wins back most, or None when no share is measured."""
    measured = [stage for stage, share in enumerate(stage_share) if share is not None]
    return max(measured, key=lambda stage: stage_share[stage] or 0.0, default=None)


def stage_name(stage: int, pp_size: int) -> str:
    """A stage in words; the first and last ones have work of their own, so they are named."""
    if stage == pp_size - 1:
        return f"stage {stage}, the last stage,"
    return f"stage {stage}, the first stage," if stage == 0 else f"stage {stage}"


def _sentence(stage_share: Sequence[float | None]) -> str:
    best = best_stage(stage_share)
    if best is None:
        return "The stages' shares are not measured: there is no loss to win back."
    share = stage_share[best] or 0.0
    return (
        f"Fixing {stage_name(best, len(stage_share))} alone wins back "
        f"{words.percent(share)} of the loss."
    )


def _note(stage_share: Sequence[float | None]) -> str:
    known = [share for share in stage_share if share is not None]
    if max(known, default=0.0) > 1:
        return (
            "A share above 100 %: the ideal spreads that stage's extra work evenly over all "
            "stages, so the others get longer, which is their negative share."
        )
    if min(known, default=0.0) < -0.005:
        return "A share below 0: with its ideal times this stage would take longer than it does."
    return ""


def _share(share: float | None) -> str:
    return words.NOT_MEASURED if share is None else words.percent(share)
