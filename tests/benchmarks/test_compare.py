"""When the working tree counts as slower, and how many pairs are measured."""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.compare import (
    FEWEST_PAIRS,
    MAX_PAIRS,
    MIN_PAIRS,
    Comparable,
    Figure,
    NotMeasured,
    Ratios,
    Tree,
    pairs_of,
)

TIME = Figure("total_s")
RATE = Figure("rows_per_s", higher_is_better=True)
TOTAL = Comparable("benchmarks/analysis.py", ("analyze",), (TIME,))


@dataclass(frozen=True)
class FakeTree(Tree):
    """A checkout whose benchmark takes these seconds, one run after the other."""

    seconds: Iterator[float]

    def measure(self, benchmark):
        return {TIME.key: next(self.seconds), "cpu_s": 1.0}


@pytest.mark.parametrize(
    ("figure", "new", "old", "is_slower"),
    [
        (TIME, [1.05, 1.04, 1.06], [1.0, 1.0, 1.0], True),
        (TIME, [1.03, 1.03, 1.03], [1.0, 1.0, 1.0], False),  # no more than the limit
        (TIME, [1.5, 0.9, 0.9, 1.5], [1.0, 1.0, 1.0, 1.0], False),  # a quarter is faster
        (TIME, [0.5, 0.5], [1.0, 1.0], False),
        (RATE, [95.0, 94.0], [100.0, 100.0], True),
        (RATE, [105.0, 106.0], [100.0, 100.0], False),
    ],
)
def test_slower_is_a_median_above_the_limit_and_a_lower_quartile_above_one(
    figure, new, old, is_slower
):
    assert Ratios(figure, new, old).is_slower == is_slower


def pairs(new, old, max_s=600.0):
    this = FakeTree(Path("new"), Path(), iter(new))
    other = FakeTree(Path("old"), Path(), iter(old))
    *_, last = pairs_of(this, other, TOTAL, MAX_PAIRS, max_s)
    return last[TIME.key]


def test_pairs_end_when_their_ratios_lie_close_together():
    found = pairs(itertools.repeat(1.01), itertools.repeat(1.0))
    assert len(found.new) == MIN_PAIRS
    assert found.quartiles == pytest.approx((1.01, 1.01, 1.01))


def test_pairs_of_a_noisy_machine_end_at_the_limit():
    found = pairs(itertools.cycle([1.0, 1.2]), itertools.repeat(1.0))
    assert len(found.new) == MAX_PAIRS


def test_pairs_end_when_their_time_is_over():
    found = pairs(itertools.cycle([1.0, 1.2]), itertools.repeat(1.0), max_s=0.0)
    assert len(found.new) == FEWEST_PAIRS


def test_the_first_pair_is_not_counted():
    found = pairs(itertools.chain([9.0], itertools.repeat(1.0)), itertools.repeat(1.0))
    assert max(found.new) == 1.0


@pytest.mark.parametrize("spelling", ["benchmarks/__main__.py", "app/cli/bench/__main__.py"])
def test_a_benchmark_that_fails_or_prints_no_such_figure_is_not_comparable(tmp_path, spelling):
    tree, main = Tree(tmp_path, Path(sys.executable)), tmp_path / spelling
    main.parent.mkdir(parents=True)
    for folder in [main.parent, *main.parent.parents][: len(Path(spelling).parts) - 1]:
        (folder / "__init__.py").touch()
    if "cli" in spelling:
        command = tmp_path / "app" / "cli" / "__main__.py"
        command.write_text(
            "import sys\nassert sys.argv[1] == 'bench'\nimport app.cli.bench.__main__"
        )
    main.write_text("print('{\"total_s\": 2.0}')")
    assert tree.measure(TOTAL)["total_s"] == 2.0
    assert tree.measure(TOTAL)["cpu_s"] > 0
    with pytest.raises(NotMeasured, match="prints no rows_per_s"):
        tree.measure(Comparable("", ("analyze",), (RATE,)))
    main.write_text("raise SystemExit('no such option')")
    with pytest.raises(NotMeasured, match="no such option"):
        tree.measure(TOTAL)
