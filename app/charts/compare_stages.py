"""What each stage makes a step longer by, on both sides."""

from app import words
from app.charts.compare_bars import MAX_ROWS, Pair, paired_bars
from app.charts.compare_optypes import over
from app.charts.compare_side import Side
from app.charts.figure import Figure
from app.charts.theme import Theme


def compare_stages(a: Side, b: Side, *, theme: Theme) -> Figure:
    """Pairs of a stage's slowdown less 1; of many stages those that differ most."""
    of_a, of_b = ([over(s) for s in side.result["stage_slowdown"] or ()] for side in (a, b))
    num_stages = max(len(of_a), len(of_b))
    pairs = [_pair(at, of_a, of_b) for at in range(num_stages)]
    most = sorted(range(num_stages), key=lambda at: -pairs[at].change)[:MAX_ROWS]
    figure = paired_bars([pairs[at] for at in sorted(most)], _sentence(pairs), "stage", theme=theme)
    figure["meta"]["table"] = paired_bars(pairs, "", "stage", theme=theme)["meta"]["table"]
    if num_stages > MAX_ROWS:
        figure["meta"]["note"] = f"{MAX_ROWS} of {num_stages} stages: those that differ most."
    return figure


def _pair(stage: int, of_a: list[float | None], of_b: list[float | None]) -> Pair:
    """A job of fewer stages does not lack a measurement: it has no such stage."""
    of_a_said, of_b_said = (
        f"no stage {stage}" if values and stage >= len(values) else words.NOT_MEASURED
        for values in (of_a, of_b)
    )
    return Pair(f"stage {stage}", _at(of_a, stage), _at(of_b, stage), (of_a_said, of_b_said))


def _at(values: list[float | None], at: int) -> float | None:
    return values[at] if at < len(values) else None


def _sentence(pairs: list[Pair]) -> str:
    if not pairs:
        return "No stage was measured."
    most = max(pairs, key=lambda pair: pair.change)
    told = [
        f"{absent if value is None else words.percent(value) + ' longer'} on {letter}"
        for letter, value, absent in zip("BA", (most.b, most.a), most.absent[::-1], strict=True)
    ]
    return f"{most.label.capitalize()} differs most; alone it makes a step {', '.join(told)}."
