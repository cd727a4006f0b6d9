import pytest

from app.diagnosis.detector import CostFigures, Suspicion, finding_sentence, sentence_and_parts
from app.result.finding import Culprit
from app.result.sentence import (
    IS,
    STOPS,
    WAIT,
    cost_words,
    in_tense,
    onset_words,
    sentence_case,
    whole_sentence,
)


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


def test_the_parts_give_the_sentence_again():
    fact = f"stage 3 {IS} slow"
    suspicion = Suspicion(
        "stage-imbalance",
        0.9,
        0.9,
        (Culprit(stage=3),),
        lambda costs: finding_sentence(fact, costs),
    )
    costs = CostFigures(0.31, 12, "transient", end_step=25)
    sentence, parts = sentence_and_parts(suspicion, costs)
    assert (parts.fact, parts.past_fact) == ("Stage 3 is slow", "Stage 3 was slow")
    assert sentence == (
        "Stage 3 was slow, from step 12 to step 25; it cost 31 % of the job's GPU time"
    )
    assert whole_sentence(parts, 12, 25, cost_words(0.31, is_past=True)) == sentence


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
    assert cost_words(None) == ""
    assert cost_words(0.3) == "; it costs 30 % of the job's GPU time"
    assert cost_words(0.3, (0.1, 0.5)) == "; it costs 10 % to 50 % of the job's GPU time"
    assert cost_words(0.01, None, 0.09) == (
        "; another cause hides its cost now: once that is removed, this one costs 9 % of the "
        "job's GPU time"
    )
