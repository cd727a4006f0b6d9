import re
from pathlib import Path

import pytest

from app.charts.base.theme import SCALE_STOPS, THEMES, contrast

every_theme = pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)


@every_theme
def test_the_scale_runs_over_the_whole_domain_in_order(theme):
    positions = [position for position, _ in theme.colorscale]
    assert positions == [0, 0.04, 0.1, 0.2, 0.4, 0.6, 0.8, 1]


@every_theme
def test_colours_are_held_at_the_ends_of_the_domain(theme):
    assert theme.colour_at(0.9) == theme.scale[0]
    assert theme.colour_at(7.0) == theme.scale[-1]


def test_between_two_stops_colours_are_mixed():
    # Half way from #EF9F45 (1.20) to #DB6A22 (1.30).
    assert THEMES["light"].colour_at(1.25) == "#E58434"


@every_theme
def test_text_can_be_read_on_every_colour_of_the_scale(theme):
    for hundredths in range(100, 160):
        slowdown = hundredths / 100
        assert contrast(theme.text_on(slowdown), theme.colour_at(slowdown)) >= 4.5


def test_pages_use_the_same_scale_as_charts():
    frontend = Path(__file__).parents[3] / "frontend"
    tokens = (frontend / "css/tokens.css").read_text()
    colours = [each.upper() for each in re.findall(r"--scale-\d: (#\w+);", tokens)]
    assert colours == [*THEMES["light"].scale, *THEMES["dark"].scale]
    legend = (frontend / "js/pages/job/colour-scale.js").read_text()
    (stops,) = re.findall(r"const STOPS = \[(.*?)\]", legend)
    assert tuple(map(float, stops.split(","))) == SCALE_STOPS
