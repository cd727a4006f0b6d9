import re

import pytest

from app.diagnosis.detector import CostFigures, finding_sentence
from app.diagnosis.onset_words import ONSET_WORDS, onset_words, past_tense


@pytest.mark.parametrize(
    ("onset", "end", "words"),
    [
        (None, None, ""),
        (12, None, ", since step 12"),
        (12, 25, ", from step 12 to step 25"),
        (None, 25, ", until step 25"),
        (12, 12, ", in step 12"),
    ],
)
def test_onset_and_end_in_words(onset, end, words):
    assert onset_words(onset, end) == words
    assert not words or re.fullmatch(ONSET_WORDS, words)


def test_a_finding_that_ended_is_in_the_past_tense():
    fact = "dp 3, stage 1 on host-17 is 1.8x slower than its peers"
    assert finding_sentence(fact, CostFigures(0.31, 12, "transient", end_step=25)) == (
        "dp 3, stage 1 on host-17 was 1.8x slower than its peers, from step 12 to step 25; "
        "it cost 31 % of the job's GPU time"
    )


@pytest.mark.parametrize(
    ("present", "past"),
    [
        (
            "stage 3, the last stage, takes 1.4x as long as the others in every step",
            "stage 3, the last stage, took 1.4x as long as the others in every step",
        ),
        (
            "dp 1 is late to 40 % of its collectives by its own doing: the others wait 3 ms for it",
            "dp 1 was late to 40 % of its collectives by its own doing: the others waited 3 ms "
            "for it",
        ),
        (
            "dp 2 stops for a while in 12 of its computations",
            "dp 2 stopped for a while in 12 of its computations",
        ),
        ("node-is-7 is slow", "node-is-7 was slow"),
    ],
)
def test_verbs_and_nothing_else_are_changed(present, past):
    assert past_tense(present) == past
