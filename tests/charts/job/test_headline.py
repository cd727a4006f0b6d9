import pytest

from app.charts.job.headline import JobFacts, headline
from app.result.finding import RuledOut
from app.result.window_result import AbsentWorker, ImputedRecord
from tests.charts.results import found, result
from tests.results import idle


def told(state, seen_result=None, **seen):
    line = headline(state, seen_result, JobFacts(**seen))
    assert line.state == state
    return line.sentence, line.sub


NAMED = (
    "dp 1, stage 1 on host-017 is 1.6\u00d7 slower than its peers in forward and backward, "
    "since step 10; it costs 29 % of the job's GPU time"
)


def test_the_most_costly_cause_is_the_headline():
    sentence, _ = told("straggling", result())
    assert sentence == f"{NAMED}."


def test_a_host_cannot_turn_the_direction_of_the_headline():
    sentence, _ = told("straggling", result(findings=[found(sentence="dp 1 on h\u202egnp")]))
    assert "\u202e" not in sentence


def test_headline_says_that_no_cause_fits():
    lost = "This job runs at 1.42\u00d7 of its ideal. It loses 30 % of its GPU time."
    sub = "Paceline cannot say where: no known cause fits."
    assert told("straggling", result(findings=[])) == (lost, sub)


def test_a_fact_without_a_cause_stands_where_nothing_would_stand_out():
    quiet = result(slowdown=1.01, findings=[])
    assert told("healthy", quiet)[0].endswith("Nothing stands out.")
    seen = result(slowdown=1.01, findings=[], observations=[idle(0.054)])
    assert told("healthy", seen)[0].endswith(f"of its ideal. {idle(0.054)['sentence']}.")
    small = result(slowdown=1.01, findings=[], observations=[idle(0.02)])
    assert told("healthy", small)[0].endswith("Nothing stands out.")


def test_headline_claims_no_cause_without_a_diagnosis():
    assert told("straggling", result(findings=None))[1] == ""
    assert told("healthy", result(findings=None, slowdown=1.01))[0].endswith("of its ideal.")


def test_uniform_slowdown_says_what_its_cost_is_against():
    slower = found("uniform-slowdown", "Every worker computes 1.2x slower since step 40")
    assert told("healthy", result(slowdown=1.01, findings=[slower])) == (
        "Every worker computes 1.2\u00d7 slower since step 40.",
        "That cost is against the job's own earlier pace: all workers slowed down alike, and the "
        "ideal with them, so the job runs at 1.01\u00d7 of its ideal.",
    )


def test_low_fidelity_names_the_discrepancy_and_no_culprit():
    low = result(fidelity={"discrepancy": 0.081, "verdict": "low"}, findings=None)
    sentence, sub = told("low-fidelity", low)
    assert sentence == "The simulated steps differ from the recorded ones by 8.1 %."
    assert sub == "The limit is 5 %. Naming a worker or a stage would be a guess."


def test_low_fidelity_says_facts_that_need_no_replay():
    low = {"fidelity": {"discrepancy": 0.081, "verdict": "low"}, "findings": None}
    _, sub = told("low-fidelity", result(**low, observations=[idle(0.054)]))
    assert sub.startswith(f"{idle(0.054)['sentence']}. The limit is 5 %.")


def test_a_finding_that_explains_the_difference_leads():
    low = result(fidelity={"discrepancy": 0.681, "verdict": "low"})
    sentence, sub = told("low-fidelity", low)
    assert sentence == f"{NAMED}."
    assert sub == (
        "The simulated steps differ from the recorded ones by 68 %; late launches explain that."
    )


def test_causes_with_insufficient_data_are_named():
    others = [RuledOut("slow-worker", "few steps", insufficient=True), RuledOut("gc-pause", "none")]
    sub = told("straggling", result(findings=[], ruled_out=others))[1]
    assert sub == "Paceline cannot say where; not enough data to judge: slow-worker."


def test_before_the_first_figure_the_steps_that_arrived_are_counted():
    assert told("not-analysed")[0] == "0 of 8 complete steps have arrived."
    assert told("not-analysed", num_steps=1)[0] == "1 of 8 complete steps has arrived."
    assert told("not-analysed", num_steps=3)[0] == "3 of 8 complete steps have arrived."


def test_steps_that_came_and_could_not_be_analysed_are_said_with_the_reason():
    uneven = "dp rank 1 runs 6 micro-batches a step, the others 8: they cannot be replayed together"
    known = {"steps": [], "slowdown": None, "skipped_steps": [{"step": 7, "reason": uneven}]}
    why = "None of the newest steps could be analysed.", f"The last step was skipped: {uneven}."
    assert told("not-analysed", result(**known, findings=None)) == why
    assert told("not-analysed", result(**known)) == (f"{NAMED}.", " ".join(why))
    assert told("finished", result(**known))[1] == f"{NAMED}. {why[1]}"


AT_14_02 = 1_790_085_720.0  # 2026-09-22 14:02 UTC


def test_a_stalled_job_says_since_when_and_how_it_was():
    sentence, _ = told(
        "stalled", result(slowdown=1.03), last_step=3310, since_s=AT_14_02, now_s=AT_14_02 + 725
    )
    assert sentence == (
        "No worker has sent anything since 14:02 UTC. "
        "It was at 1.03\u00d7 of its ideal by step 3,310."
    )


def test_stalled_job_with_low_fidelity_shows_no_slowdown():
    low = result(fidelity={"discrepancy": 0.2, "verdict": "low"})
    sentence, _ = told("stalled", low, last_step=3310, since_s=AT_14_02, now_s=AT_14_02)
    assert sentence == "No worker has sent anything since 14:02 UTC."


@pytest.mark.parametrize(
    ("ranks", "num_others", "sentence"),
    [
        ([12], 1, "Rank 12 has been silent since 14:02 UTC; 1 other goes on."),
        ([12, 13], 1022, "Ranks 12 and 13 have been silent since 14:02 UTC; 1,022 others go on."),
        ([*range(1, 51)], 974, "Ranks 1 to 50 have been silent since 14:02 UTC; 974 others go on."),
    ],
)
def test_a_job_with_silent_ranks_names_them_and_how_many_go_on(ranks, num_others, sentence):
    seen = {"silent_ranks": ranks, "num_others": num_others}
    known, sub = told("silent", result(), since_s=AT_14_02, now_s=AT_14_02, **seen)
    assert known == sentence
    assert "The figures are those of before" in sub
    assert "there are no figures" in told("silent", None, **seen)[1]


def missing(rank, num_steps):
    """What the result says of a rank that is missing from so many steps."""
    absent = AbsentWorker(
        rank=rank, dp_rank=1, stage=1, host=None, first_step=4, last_step=6, num_steps=num_steps
    )
    return ImputedRecord(ops=10, lone_ops=0, share=0.1, workers=(absent,), steps=())


def test_figures_of_the_others_follow_the_silent_rank():
    silent = found("silent-worker", "Rank 12 reports nothing")
    slow = found(sentence="Rank 3 is 1.8x slower")
    imputed = missing(12, num_steps=2)
    seen = {"silent_ranks": [12], "num_others": 7}
    _, sub = told("silent", result(findings=[silent, slow], imputed=imputed), **seen)
    assert sub.startswith("Rank 3 is 1.8\N{MULTIPLICATION SIGN} slower. The others run at ")
    assert "medians of other workers of the same stage stand in" in sub
    sentence, _ = told("healthy", result(findings=[silent, slow], imputed=imputed))
    assert sentence.startswith("Rank 12 reports nothing. Rank 3 is")


def test_a_finished_job_says_how_it_ended():
    sentence, sub = told("finished", result(), last_step=47)
    assert sentence == (
        "This job has finished after step 47. Over the run it ran at 1.42\u00d7 of its ideal."
    )
    assert sub == f"{NAMED}."


def test_a_finished_job_that_could_not_be_simulated_blames_nobody():
    low = result(fidelity={"discrepancy": 0.2, "verdict": "low"})
    assert told("finished", low)[0] == "This job has finished."


def test_a_finished_job_without_figures_says_so():
    assert "None of its steps was analysed." in told("finished")[0]


def test_a_finished_job_without_figures_names_the_silent_ranks_and_their_host():
    culprit = {"dp_rank": 0, "stage": 1, "rank": 1, "host": "host-7"}
    skipped = [{"step": 31, "reason": "rank 1 did not report the step before the run ended"}]

    def unmeasured(culprit, ranks):
        silent = found(
            "silent-worker", culprits=[culprit], onset_step=24, evidence={"ranks": ranks}
        )
        return result(slowdown=None, findings=[silent], skipped_steps=skipped)

    sentence, sub = told("finished", unmeasured(culprit, [1]))
    assert sentence == (
        "This job has finished. None of its steps was analysed, "
        "as host-7, rank 1 (dp 0, stage 1) sent nothing from step 24 on."
    )
    assert sub == "The last step was skipped: rank 1 did not report the step before the run ended."
    sentence, _ = told("finished", unmeasured({"host": "host-7"}, [1, 2]))
    assert "as host-7, ranks 1 and 2 sent nothing" in sentence


MISSING = missing(5, num_steps=3)
SAID = "Rank 5 is missing from 3 of 8 steps; medians of other workers of the same stage stand in."


@pytest.mark.parametrize("state", ["healthy", "straggling", "low-fidelity", "stalled", "finished"])
def test_a_missing_rank_is_said_in_every_state(state):
    low = {"verdict": "low", "discrepancy": 0.1}
    fidelity = {"fidelity": low} if state == "low-fidelity" else {}
    with_it = told(state, result(steps=list(range(8)), imputed=MISSING, **fidelity))
    assert SAID in " ".join(with_it)
    silent = found("silent-worker", "Rank 5 reports nothing")
    named = result(steps=list(range(8)), imputed=MISSING, findings=[silent], **fidelity)
    assert SAID not in " ".join(told(state, named))
