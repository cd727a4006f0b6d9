"""What `python -m benchmarks fuzz --format` does with what is taken: all that a user would."""

from contextlib import closing
from dataclasses import replace

import pytest

from app.trace.readers.importing import ImportOptions
from app.trace.readers.registry import FORMATS, SCORE_FORMATS
from app.trace.readers.scores.score_report import Score, ScoreSummary
from tests.harness.fuzz.importing import use_ops, use_scores
from tests.trace.readers.samples import put


class Scores:
    """An import of one score with this mean."""

    def __init__(self, mean):
        self.mean = mean

    def describe(self):
        return ScoreSummary(None, 1, (), source="own")

    def scores(self):
        yield Score(1, None, "s", "m", None, 1.0, self.mean, None, None, 1, 1, None, None)

    def collectives(self):
        return None

    def close(self):
        pass


def test_a_number_that_json_cannot_hold_is_seen():
    use_scores(Scores(1.0))
    for mean in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            use_scores(Scores(mean))


def test_rows_that_cannot_be_written_are_seen(tmp_path):
    opened = FORMATS["ndtimeline"].opened(put(FORMATS["ndtimeline"], tmp_path), ImportOptions())
    with closing(opened):
        use_ops(opened)
        *others, last = opened.chunks()
        torn = [*others, replace(last, duration_ns=last.duration_ns[:-1])]
        vars(opened)["chunks"] = lambda: iter(torn)
        with pytest.raises(ValueError, match="duration expected length 88"):
            use_ops(opened)


@pytest.mark.parametrize("name", SCORE_FORMATS)
def test_fuzzed_samples_are_valid_before_damage(name, tmp_path):
    with closing(
        SCORE_FORMATS[name].opened(put(SCORE_FORMATS[name], tmp_path), ImportOptions())
    ) as opened:
        use_scores(opened)
