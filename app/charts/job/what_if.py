"""Steps as recorded and under a what-if question; the area between is what the change wins back."""

from collections.abc import Mapping, Sequence

from app import formatting
from app.charts.base.figure import Cell, PlotlyFigure, layout, meta
from app.charts.base.plotly import PlotlyLine, PlotlyTrace, line_style
from app.charts.base.step_axis import StepAxis, area_over_steps, line_over_steps, time_axis
from app.charts.base.theme import Theme

_LEFT_PX = 56
_KINDS = {
    "recorded": "recorded",
    "simulated": "simulated",
    "what_if": "what if",
    "ideal": "without stragglers",
}

Seconds = Sequence[float]


def what_if(
    steps: Sequence[int], step_time_s: Mapping[str, Seconds], *, theme: Theme
) -> PlotlyFigure:
    """Line chart of `recorded`, `simulated`, `what_if` and `ideal` seconds, by position in `steps`.

    Simulated times have no late launches: here they are scaled to the record, so that all lines
    can be compared. Differences are against the simulated steps.
    """
    at = StepAxis.over(steps)
    step_time_s = _scaled_to_the_record(step_time_s)
    times = [time_s for times_s in step_time_s.values() for time_s in times_s]
    return PlotlyFigure(
        data=_traces(at, step_time_s, theme),
        layout=layout(
            theme,
            height_px=260,
            left_px=_LEFT_PX,
            margin={"t": 24, "b": 28},
            hovermode="x",
            xaxis=at.x_axis(theme),
            yaxis=time_axis(times, theme),
            shapes=at.bands(theme),
            annotations=at.labels(theme),
        ),
        meta=meta(
            _sentence(step_time_s),
            ["step", *(f"{kind}, s" for kind in _KINDS.values()), "speed-up"],
            _rows(steps, step_time_s),
        ),
    )


def _scaled_to_the_record(step_time_s: Mapping[str, Seconds]) -> dict[str, Seconds]:
    """Simulated times x mean recorded / mean simulated."""
    recorded_s, simulated_s = (sum(step_time_s[kind]) for kind in ("recorded", "simulated"))
    late = recorded_s / simulated_s if simulated_s > 0 else 1.0
    return {
        kind: times if kind == "recorded" else [late * time_s for time_s in times]
        for kind, times in step_time_s.items()
    }


def _traces(at: StepAxis, times: Mapping[str, Seconds], theme: Theme) -> list[PlotlyTrace]:
    simulated, asked, ideal = times["simulated"], times["what_if"], times["ideal"]
    return [
        area_over_steps(at, [*map(max, asked, ideal)], ideal, "still lost", theme.lost_area),
        area_over_steps(at, [*map(max, simulated, asked)], asked, "won back", theme.ok_area),
        _line(at, ideal, "without stragglers", line_style(theme.ok, 1.75, "dash")),
        _line(at, simulated, "simulated", line_style(theme.sim, 1, "dot")),
        _line(at, times["recorded"], "recorded", line_style(theme.rec, 1.5, "solid")),
        _line(at, asked, "what if", line_style(theme.accent, 2.25, "dashdot")),
    ]


def _line(at: StepAxis, times_s: Seconds, name: str, line: PlotlyLine) -> PlotlyTrace:
    return line_over_steps(at, times_s, name, line, " s", is_marked=line["width"] >= 1.5)


def _sentence(step_time_s: Mapping[str, Seconds]) -> str:
    mean = {kind: sum(times) / max(1, len(times)) for kind, times in step_time_s.items()}
    return (
        f"A step takes {formatting.seconds(mean['what_if'])} with the changes and "
        f"{formatting.seconds(mean['recorded'])} without; without stragglers it would take "
        f"{formatting.seconds(mean['ideal'])}."
    )


def _rows(steps: Sequence[int], times: Mapping[str, Seconds]) -> list[list[Cell]]:
    return [
        [step, *(f"{times[kind][at]:.3f}" for kind in _KINDS), _speed_up(times, at)]
        for at, step in enumerate(steps)
    ]


def _speed_up(times: Mapping[str, Seconds], at: int) -> Cell:
    simulated_s, asked_s = times["simulated"][at], times["what_if"][at]
    return formatting.ratio(simulated_s / asked_s) if asked_s > 0 else formatting.NOT_MEASURED
