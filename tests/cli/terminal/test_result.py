import io
import re

from msgspec.structs import replace
from rich.console import Console

from app.cli.terminal.blocks import StepBlocks, WorkerHeatmap
from app.cli.terminal.result import figures
from app.engine.report import analyse, report_result
from tests.api.recorded import window
from tests.results import window_result


def printed_lines(renderable, width, **options):
    written = io.StringIO()
    Console(file=written, width=width, **options).print(renderable)
    return [line.rstrip() for line in written.getvalue().splitlines()]


def test_without_colour_the_heatmap_is_numbers():
    slowdown = [[1.0, 1.25], [1.5, 12.3], [1.0, 345.6]]
    assert printed_lines(WorkerHeatmap(slowdown), 40) == [
        "        dp ranks 0-2 →",
        "stage 0  1.00 1.50 1.00",
        "stage 1  1.25 12.3 346",
    ]


def test_tiny_negative_figures_print_as_zero():
    report = report_result(analyse(window()))
    result = replace(report, gpu_time_wasted=-1e-9, gpu_hours_lost=-1e-9)
    lines = "\n".join(printed_lines(figures(result), 120))
    assert re.search(r"GPU time wasted +0\.0 %", lines)
    assert re.search(r"GPU-hours lost +0\.00 ", lines)


def test_wide_heatmap_bins_dp_ranks_by_the_slowest():
    slowdown = [[1.0, 1.0] for _ in range(64)]
    slowdown[41][1] = 1.62
    lines = printed_lines(WorkerHeatmap(slowdown), 40)
    assert all(len(line) <= 40 for line in lines)
    assert "1.62" in lines[2]
    assert "1.62" not in lines[1]
    assert lines[-2].startswith("A cell is the slowest of 11 dp ranks")


def test_many_stages_are_binned():
    lines = printed_lines(WorkerHeatmap([[1.0] * 99 + [1.3]]), 60)
    assert lines[-2] == "stage 96-99  1.30"
    assert len(lines) == 1 + 25 + 1


def test_skipped_steps_are_listed_with_their_reason():
    result = window_result(
        steps=[4, 6],
        step_slowdown=[1.0, 1.5],
        skipped_steps=[{"step": 5, "reason": "rank 3 reported nothing"}] * 5,
    )
    lines = printed_lines(StepBlocks(result), 80)
    assert lines[0] == "▁█"
    assert lines[1].endswith("slowest is step 6 at 1.50\u00d7")
    assert lines[2] == "step 5 is left out: rank 3 reported nothing"
    assert lines[-1] == "and 2 more steps are left out"
