"""Every finding's sentence says what its JSON says; and sentences that do not are noticed."""

import re
from collections.abc import Iterator

import pytest
from msgspec import structs

from app.advice.advise import advise, fix_record
from app.advice.facts import Facts
from app.advice.fix import MIN_SPEED_UP
from app.alerts.formats.figures import fix_text
from app.alerts.rules.evaluation import suggested_fix
from app.charts.job.headline import JobFacts, headline
from app.engine.replays import prepare
from app.monitor import advice_case, observe
from app.result.finding import Finding
from app.result.words import fix_wins
from benchmarks.strangers.command import FINAL_JOBS, job_number
from benchmarks.strangers.drawn_jobs import draw_job
from benchmarks.strangers.sentences import contradictions
from tests.results import finding

GROUPS = tuple(FINAL_JOBS)
STEPS = tuple(range(100, 110))
HOSTS = ("host-a", "host-b", "host-c")
MEASURED = {
    "steps": list(STEPS),
    "workers": [[1, 2]],
    "slowdown_against_peers": 1.42,
    "forward_slowdown": 1.42,
    "backward_slowdown": 1.42,
}
SAID = (
    "host-b, ranks 10 and 11 (dp 1, stage 2) is 1.4x slower than its peers in forward and "
    "backward, since step 103, in all 10 steps; it costs 12 % of the job's GPU time"
)


def slow_worker(sentence=SAID, **given):
    culprit = {"dp_rank": 1, "stage": 2, "host": "host-b", "rank": 10, "ranks": [10, 11]}
    known = {"culprits": [culprit], "cost": 0.121, "onset_step": 103, "evidence": MEASURED}
    return finding("slow-worker", **{**known, **given, "sentence": sentence})


def test_a_sentence_that_says_what_its_finding_says_is_left_alone():
    assert contradictions(slow_worker(), STEPS, HOSTS) == []


# The words, what they are made of, and what is wrong then.
WRONG = [
    ("costs 12 %", "costs 21 %", "cost"),
    ("; it costs 12 % of the job's GPU time", "", "cost"),
    ("costs 12 %", "costs 12 % to 14 %", "cost"),
    ("since step 103", "since step 104", "onset"),
    (", since step 103", "", "onset"),
    ("since step 103", "from step 103 to step 105", "onset"),
    ("since step 103", "since step 103 or before", "onset"),
    ("is 1.4x", "was 1.4x", "tense"),
    ("ranks 10 and 11", "ranks 10 and 12", "ranks"),
    ("ranks 10 and 11", "rank 10", "ranks"),
    ("ranks 10 and 11 ", "", "ranks"),
    ("dp 1, stage 2", "dp 2, stage 1", "is no culprit"),
    ("host-b", "host-a", "hosts"),
    ("host-b, ranks", "ranks", "left out"),
    ("1.4x", "1.5x", "factor"),
    ("is 1.4x slower", "is slower", "factor"),
    ("all 10 steps", "all 9 steps", "steps show it"),
    ("all 10 steps", "9 of 10 steps", "steps show it"),
]


@pytest.mark.parametrize(("words", "others", "what"), WRONG)
def test_a_wrong_word_is_noticed(words, others, what):
    assert words in SAID
    sentence = SAID.replace(words, others)
    sentence = sentence.replace("it costs", "it cost") if "was" in others else sentence
    assert any(what in wrong for wrong in contradictions(slow_worker(sentence), STEPS, HOSTS))


def test_a_direction_that_is_fast_is_not_said_to_be_slow():
    only_forward = MEASURED | {"backward_slowdown": 0.42}
    assert contradictions(slow_worker(evidence=only_forward), STEPS, HOSTS)
    alone = SAID.replace(
        "is 1.4x slower than its peers in forward and backward",
        "takes 1.4x as long as its peers in the forward, "
        "and is as fast as they are in the backward",
    )
    assert contradictions(slow_worker(alone, evidence=only_forward), STEPS, HOSTS) == []
    assert contradictions(slow_worker(alone), STEPS, HOSTS)


def test_in_every_step_is_only_said_where_it_is_so():
    text = SAID.replace("in all 10 steps", "in every step")
    assert contradictions(slow_worker(text), STEPS, HOSTS) == []
    evidence = MEASURED | {"steps": list(STEPS[2:])}
    assert contradictions(slow_worker(text, evidence=evidence), STEPS, HOSTS)


def changed(said: Finding, hosts: list[str]) -> Iterator[str]:
    """The sentence with one thing wrong, in as many ways as it has things."""
    text = said.sentence
    yield re.sub(r"(costs? )(\d+)", lambda cost: f"{cost[1]}{int(cost[2]) + 2}", text)
    yield re.sub(r"; it costs? .*", "", text)
    yield re.sub(r"((?:since|from) step )(\d+)", lambda step: f"{step[1]}{int(step[2]) + 1}", text)
    yield re.sub(r", since step \d+", "", text)
    yield re.sub(r"\b([Rr]ank )(\d+)", lambda rank: f"{rank[1]}{int(rank[2]) + 1000}", text)
    yield re.sub(r"( to )(\d+)( \(dp)", lambda rank: f"{rank[1]}{int(rank[2]) + 1}{rank[3]}", text)
    yield re.sub(r"dp (\d+), stage", lambda place: f"dp {int(place[1]) + 500}, stage", text)
    yield re.sub(r"([\d.]+)x (slower|as long)", r"7\1x \2", text)
    yield re.sub(r"in all (\d+) steps", lambda steps: f"in all {int(steps[1]) + 1} steps", text)
    named = [culprit.host for culprit in said.culprits if culprit.host]
    if named and (others := [host for host in hosts if host not in text]):
        yield text.replace(named[0], others[0])


@pytest.mark.parametrize(
    ("seed", "num_jobs"), [(31, 24), pytest.param(32, 500, marks=pytest.mark.nightly)]
)
def test_sentences_of_strangers_jobs_say_what_their_findings_say(seed, num_jobs):
    num_findings = num_changed = 0
    for index in range(num_jobs):
        job = draw_job(job_number(seed, GROUPS[index % len(GROUPS)], index))
        if job.window is None:
            continue
        hosts = sorted(set(job.window.hosts.values()))
        result = observe(job.window).result
        for said in result.findings or ():
            num_findings += 1
            assert contradictions(said, result.steps, hosts) == [], said.sentence
            for sentence in changed(said, hosts):
                if sentence != said.sentence:
                    num_changed += 1
                    wrong = structs.replace(said, sentence=sentence)
                    assert contradictions(wrong, result.steps, hosts), sentence
    assert num_findings >= num_jobs / 2
    assert num_changed >= 40


@pytest.mark.parametrize(
    ("seed", "num_jobs"), [(33, 10), pytest.param(34, 500, marks=pytest.mark.nightly)]
)
def test_headline_alert_and_advice_give_one_figure_for_a_win(seed, num_jobs):
    num_fixes = 0
    for index in range(num_jobs):
        job = draw_job(job_number(seed, GROUPS[index % len(GROUPS)], index))
        if job.window is None:
            continue
        case = advice_case(prepare(job.window), Facts())
        findings, fix = case.result.findings or (), case.result.advice
        offered = [offer for offer in advise(case).fixes if offer.cause is not None]
        if fix is None:
            assert not any(offer.speed_up >= MIN_SPEED_UP for offer in offered)
            continue
        num_fixes += 1
        assert fix_record(offered[0]) == fix
        words = fix_wins(fix.gpu_hours_per_day, fix.gpu_hours_per_day_range)
        assert words in headline("straggling", case.result, JobFacts()).sub
        blamed = next(finding for finding in findings if finding.cause == fix.cause)
        suggested = suggested_fix(blamed, fix)
        assert suggested is None or words in fix_text(suggested)
        assert (suggested is None) is (blamed.end_step is not None)
    assert num_fixes >= num_jobs / 4
