"""From the ideal step to the recorded one: what each cause takes, as a share of the recorded step.

    ideal + each cause - what two of them take at once + what no cause explains + idle = recorded

The ideal is that after all repairs (`Unexplained.ideal_share`). Costs of causes are measured one by
one, so several need not add up: time that two of them lose counts once here, and what only both
repairs win is a bar of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from app import formatting
from app.charts.base.bars import bars_of, rows_layout
from app.charts.base.figure import PlotlyFigure, meta
from app.charts.base.theme import Theme
from app.result.causes import cause_name, cause_of
from app.result.finding import Finding
from app.result.window_result import WindowResult
from app.result.words import MIN_UNEXPLAINED_SHARE

# Single costs are means over different steps, so their sum is off the joint cost by less than this.
_MIN_JOINT_SHARE = 0.02
# More causes than this are one bar.
_MAX_CAUSES = 6
_ROW_PX = 30


@dataclass(frozen=True, slots=True)
class LossPart:
    """One row: `share` of the recorded step, below zero where it was counted twice before."""

    label: str
    share: float
    colour: str
    is_guess: bool = False  # not explained: hatched


def has_losses(result: WindowResult) -> bool:
    """Whether there is a loss worth a chart: a cause that costs something, or much unexplained.

    As `hasLosses` of the page (panels.js). Not where figures are withheld.
    """
    rest = result.unexplained
    if rest is None or rest.ideal_share is None or result.fidelity.verdict == "low":
        return False
    return bool(_costly(result)) or rest.share >= MIN_UNEXPLAINED_SHARE


def _costly(result: WindowResult) -> list[Finding]:
    costly = [finding for finding in result.findings or () if _cost(finding) > 0]
    return sorted(costly, key=lambda finding: -_cost(finding))


def loss_parts(result: WindowResult, theme: Theme) -> list[LossPart]:
    """The ideal and all that is lost, in the order in which it adds up to the recorded step.

    Nothing of a result without losses.
    """
    rest = result.unexplained
    if not has_losses(result) or rest is None or rest.ideal_share is None:
        return []
    named = _costly(result)
    within = [_cost(finding) for finding in named if not _is_between(finding)]
    # Costs between steps are shares of all time, all other costs shares of the steps' time.
    of_steps = max(0.0, 1 - sum(_cost(finding) for finding in named if _is_between(finding)))
    ideal, unexplained, idle = rest.ideal_share, rest.share, rest.idle_share or 0.0
    joint = 1 - ideal - unexplained - idle - sum(within)
    if len(named) < 2 or abs(joint) < _MIN_JOINT_SHARE:
        ideal, joint = ideal + joint, 0.0
    if unexplained < _MIN_JOINT_SHARE:
        ideal, unexplained = ideal + unexplained, 0.0
    if idle < _MIN_JOINT_SHARE:
        ideal, idle = ideal + idle, 0.0
    ideal, joint, unexplained, idle = (
        of_steps * share for share in (ideal, joint, unexplained, idle)
    )
    return [
        LossPart("Ideal", ideal, theme.sim),
        *_of_causes(named, of_steps, result.job.pp_size, theme),
        *([LossPart("Counted twice", joint, theme.line2)] if joint < 0 else []),
        *([LossPart("Only together", joint, theme.lost)] if joint > 0 else []),
        *([LossPart("Not explained", unexplained, theme.wait, True)] if unexplained else []),
        *([LossPart("All idle, cause not recorded", idle, theme.wait, True)] if idle else []),
    ]


def _cost(finding: Finding) -> float:
    return finding.cost or 0.0


def _is_between(finding: Finding) -> bool:
    return cause_of(finding.cause).is_between_steps


def _of_causes(
    named: Sequence[Finding], of_steps: float, pp_size: int, theme: Theme
) -> Iterator[LossPart]:
    shares = [_cost(finding) * (1 if _is_between(finding) else of_steps) for finding in named]
    for finding, share in zip(named[:_MAX_CAUSES], shares, strict=False):
        is_last = [culprit.stage for culprit in finding.culprits] == [pp_size - 1]
        name = formatting.upper_first(cause_name(finding.cause, is_last_stage=is_last))
        yield LossPart(name, share, theme.lost)
    if rest := shares[_MAX_CAUSES:]:
        yield LossPart(f"{len(rest)} other causes", sum(rest), theme.lost)


def waterfall(result: WindowResult, *, theme: Theme) -> PlotlyFigure:
    """Bars that begin where the one above ends, and the recorded step as the last one."""
    parts = loss_parts(result, theme)
    ends = list(accumulate(part.share for part in parts))
    begins = [0.0, *ends][: len(ends)]
    rows = [*parts, LossPart("Recorded", 1.0, theme.rec)]
    low_ends = [*(min(pair) for pair in zip(begins, ends, strict=True)), 0.0]
    labels = [row.label for row in rows]
    values = [formatting.percent(row.share) for row in rows]
    frame = rows_layout(
        labels, (min([0.0, *ends]), max([1.0, *ends])), theme, height_px=_ROW_PX * len(rows) + 20
    )
    return PlotlyFigure(
        data=[
            bars_of(
                labels,
                [abs(row.share) for row in rows],
                theme,
                base=low_ends,
                marker={
                    "color": [row.colour for row in rows],
                    "line": {"width": 0},
                    "pattern": {"shape": ["/" if row.is_guess else "" for row in rows]},
                },
                text=values,
                hovertemplate="%{customdata}<br><b>%{text}</b> of the step<extra></extra>",
            )
        ],
        layout=frame,
        meta=meta(
            _sentence(parts),
            ["part", "share of the recorded step"],
            [[label, value] for label, value in zip(labels, values, strict=True)],
            note=_note(parts),
        ),
    )


def _sentence(parts: list[LossPart]) -> str:
    if not parts:
        return "No loss is known that a cause would explain."
    ideal, *losses = parts
    listed = ", ".join(f"{part.label.lower()} {formatting.percent(part.share)}" for part in losses)
    return f"Of the recorded step the ideal is {formatting.percent(ideal.share)}: {listed}."


def _note(parts: list[LossPart]) -> str:
    labels = {part.label for part in parts}
    if "Counted twice" in labels:
        return "Some causes lose the same time: mending one of them wins less than its bar."
    if "Only together" in labels:
        return "Some causes hide each other: that part is won once both are mended."
    return ""
