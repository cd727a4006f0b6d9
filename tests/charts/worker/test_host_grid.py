"""The grid of hosts by rack: which host a cell is, what it shows, and who is outlined."""

import math

import numpy as np
import plotly.graph_objects as go
import pytest

from app.charts.base.theme import THEMES
from app.charts.worker.host_grid import MAX_ROWS, host_cells, host_grid
from tests.charts.results import unpacked

THEME = THEMES["light"]


def job(num_hosts, *, racks=0, per_host=2):
    """Slowdowns [dp ranks][1 stage] of hosts of `per_host` workers, hosts and racks by worker."""
    num_workers = num_hosts * per_host
    hosts = {(dp, 0): f"host-{dp // per_host:03}" for dp in range(num_workers)}
    size = -(-num_hosts // racks) if racks else 0
    of_rack = {
        worker: f"rack-{worker[0] // per_host // size}" if racks else None for worker in hosts
    }
    return np.ones((num_workers, 1)), hosts, of_rack


def drawn(slowdown, hosts, racks, **given):
    figure = host_grid(slowdown, hosts=hosts, racks=racks, theme=THEME, **given)
    go.Figure(data=figure["data"], layout=figure["layout"])
    return figure


def test_a_host_is_as_slow_as_its_slowest_worker():
    slowdown, hosts, racks = job(4, racks=2)
    slowdown[5, 0] = 1.4
    cells = host_cells(slowdown, hosts, racks)
    assert [(cell.host, cell.rack, cell.slowest, cell.slowdown) for cell in cells] == [
        ("host-000", "rack-0", (0, 0), 1.0),
        ("host-001", "rack-0", (2, 0), 1.0),
        ("host-002", "rack-1", (5, 0), 1.4),
        ("host-003", "rack-1", (6, 0), 1.0),
    ]


def test_racks_are_rows_and_hosts_of_findings_are_outlined():
    slowdown, hosts, racks = job(6, racks=3)
    slowdown[7, 0] = 1.3
    figure = drawn(slowdown, hosts, racks, named=[(7, 0)])
    assert unpacked(figure["data"][0]["z"]) == [[1.0, 1.0], [1.0, 1.3], [1.0, 1.0]]
    labels = [text.strip() for text in figure["layout"]["yaxis"]["ticktext"]]
    assert labels == ["rack-0", "rack-1", "rack-2"]
    (outline,) = figure["layout"]["shapes"]
    assert (outline["x0"], outline["y0"]) == (0.5, 0.5)
    text = figure["meta"]["text"]
    assert "host-003" in text
    assert "1.30\u00d7; a finding names it." in text
    assert figure["meta"]["table"]["rows"][0] == [
        "host-003",
        "rack-1",
        2,
        "dp 7, stage 0",
        "1.30\u00d7",
    ]


@pytest.mark.parametrize("num_hosts", [1, 65, 3000, 12_500])
def test_hosts_without_racks_fill_rows_by_name(num_hosts):
    slowdown, hosts, racks = job(num_hosts, per_host=1)
    rows = unpacked(drawn(slowdown, hosts, racks)["data"][0]["z"])
    assert len(rows) <= MAX_ROWS
    assert sum(value is not None for row in rows for value in row) == num_hosts


def test_thousands_of_racks_share_rows():
    slowdown, hosts, racks = job(2000, racks=1000)
    assert len(unpacked(drawn(slowdown, hosts, racks)["data"][0]["z"])) <= MAX_ROWS


def test_silent_and_unmeasured_hosts_have_a_cross_and_no_figure():
    slowdown, hosts, racks = job(3)
    slowdown[0:2, 0] = math.nan
    figure = drawn(slowdown, hosts, racks, silent=[(3, 0)])
    assert unpacked(figure["data"][0]["z"]) == [[None, None, 1.0]]
    first, second = figure["data"][1]["customdata"]
    assert first.endswith("<b>not measured</b>")
    assert second.endswith("<b>1 of 2 workers silent</b>")


def test_names_from_outside_are_escaped():
    figure = drawn(np.ones((1, 1)), {(0, 0): "<img src=x>"}, {(0, 0): "<b>rack"})
    shown = [*figure["data"][0]["customdata"][0], *figure["layout"]["yaxis"]["ticktext"]]
    assert not any("<img" in text or "<b>rack" in text for text in shown)
