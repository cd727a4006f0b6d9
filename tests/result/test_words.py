import pytest

from app.diagnosis.detector import Suspicion, sentence_parts
from app.result.finding import Culprit
from app.result.words import (
    IS,
    STOPS,
    WAIT,
    fix_wins,
    in_tense,
    loses,
    of_ideal,
    onset_words,
    sentence_case,
    sentence_of,
)
from tests.results import finding


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


def test_bursts_have_a_first_step_and_a_stop_has_its_step_in_the_fact():
    assert onset_words(12, None, "first") == ", first in step 12"
    assert onset_words(12, 25, "first") == ", from step 12 to step 25"
    assert onset_words(12, None, None) == ""


def test_only_marked_verbs_have_tenses():
    fact = f"node-is-7 {IS} slow in its stops, and {STOPS}; others {WAIT}"
    assert in_tense(fact, is_past=False) == "node-is-7 is slow in its stops, and stops; others wait"
    assert in_tense(fact, is_past=True) == (
        "node-is-7 was slow in its stops, and stopped; others waited"
    )


PARTS = {"fact": "Stage 3 is slow", "past_fact": "Stage 3 was slow"}


def said(**given):
    """The sentence of a finding with these parts, of unknown onset unless given."""
    known = {"sentence_parts": PARTS, "onset_step": None, "cost": None}
    return sentence_of(finding("stage-imbalance", **known | given))


def test_a_sentence_is_the_fact_its_onset_and_end_and_its_cost():
    ended = {"onset_step": 12, "end_step": 25, "cost": 0.31}
    assert said(**ended) == (
        "Stage 3 was slow, from step 12 to step 25; it cost 31 % of the job's GPU time"
    )
    assert said(onset_step=12, cost=0.31) == (
        "Stage 3 is slow, since step 12; it costs 31 % of the job's GPU time"
    )
    assert said(sentence_parts=PARTS | {"note": "The replay is far off"}) == (
        "Stage 3 is slow. The replay is far off"
    )


def test_an_unknown_onset_is_said_by_the_first_step_that_shows_the_cause():
    assert said(onset_by_step=4) == "Stage 3 is slow, since step 4 or before"
    assert said(onset_by_step=4, end_step=25) == (
        "Stage 3 was slow, from step 4 or before to step 25"
    )
    assert said(onset_step=12, onset_by_step=4) == "Stage 3 is slow, since step 12"


def test_parts_of_a_suspicion_have_the_fact_in_both_tenses():
    suspicion = Suspicion("stage-imbalance", 0.9, 0.9, (Culprit(stage=3),), f"stage 3 {IS} slow")
    parts = sentence_parts(suspicion)
    assert (parts.fact, parts.past_fact) == ("Stage 3 is slow", "Stage 3 was slow")


@pytest.mark.parametrize(
    ("text", "cased"),
    [
        ("rank 8 (dp 1) is slow", "Rank 8 (dp 1) is slow"),
        ("every worker's computations", "Every worker's computations"),
        ("stages get heavier", "Stages get heavier"),
        ("node-7 is slow", "node-7 is slow"),
        ("ranker-1 is slow", "ranker-1 is slow"),
    ],
)
def test_sentences_begin_in_upper_case_unless_with_a_name(text, cased):
    assert sentence_case(text) == cased


def test_cost_in_words():
    assert said() == "Stage 3 is slow"
    assert said(cost=0.3).endswith("; it costs 30 % of the job's GPU time")
    between = said(cost=0.3, cost_range=(0.1, 0.5))
    assert between.endswith("; it costs 10 % to 50 % of the job's GPU time")


@pytest.mark.parametrize("key", ["cost_after_other_repairs", "cost_once_others_are_mended"])
def test_a_hidden_cost_is_said_as_that_after_other_repairs(key):
    assert said(cost=0.01, evidence={key: 0.09}).endswith(
        "; another cause hides its cost now: once that is removed, this one costs 9 % of the "
        "job's GPU time"
    )


def test_a_pace_and_a_loss_in_words():
    assert of_ideal(1.3) == "1.30\u00d7 of its ideal"
    assert of_ideal(1.3, "their") == "1.30\u00d7 of their ideal"
    assert of_ideal(None) == "an unknown ratio of its ideal"
    assert loses(0.24) == "loses 24 % of its GPU time"


def test_what_a_fix_wins_has_its_range_where_that_is_known():
    assert fix_wins(468.0, (-78.0, 1013.0)) == (
        "wins about 470 GPU-h a day (\u221278 to 1,000), simulated"
    )
    assert fix_wins(468.0) == "wins about 470 GPU-h a day, simulated"
    assert fix_wins(468.0, (467.0, 469.0)) == "wins about 470 GPU-h a day, simulated"
