import pytest

from app.charts.headline import Seen, headline
from tests.charts.results import result

HOSTS = {(1, 1): "host-017"}


def told(state, seen_result=None, **seen):
    line = headline(state, seen_result, Seen(**seen))
    assert line.state == state
    return line.sentence, line.sub


def test_a_slow_worker_is_named_with_what_it_costs():
    assert told("straggling", result(), hosts=HOSTS) == (
        "This job runs at 1.42\u00d7 of its ideal. It loses 30 % of its GPU time.",
        "dp 1, stage 1 on host-017 alone would make it 1.40\u00d7; "
        "fixing the slowest 3 % of workers wins back 98 % of the loss.",
    )


def test_without_a_known_host_a_worker_goes_by_its_place():
    assert told("straggling", result())[1].startswith("dp 1, stage 1 alone would make it")


def test_a_long_last_stage_is_named_when_no_worker_explains_the_loss():
    sub = told("straggling", result(m_w=0.03, stage_share=[-0.1, 0.96]))[1]
    assert sub == "Fixing stage 1, the last stage, alone wins back 96 % of the loss."


def test_a_worker_that_costs_little_alone_is_not_named():
    sub = told("straggling", result([[1.0, 1.0], [1.0, 1.04]], stage_share=[0.1, 0.7]))[1]
    assert sub.startswith("Fixing stage 1")


def test_the_only_stage_of_a_job_is_never_blamed():
    sub = told("straggling", result([[1.0], [1.0]], m_w=0.1, stage_share=[1.0]))[1]
    assert sub.startswith("Paceline cannot say where")


def test_shares_that_are_not_known_name_nobody():
    sub = told("straggling", result(m_w=None, stage_share=[None, None]))[1]
    assert sub.startswith("Paceline cannot say where")


def test_a_healthy_job_has_nothing_to_say():
    assert told("healthy", result(slowdown=1.02)) == (
        "This job runs at 1.02\u00d7 of its ideal. Nothing stands out.",
        "",
    )


def test_low_fidelity_names_the_difference_and_nobody():
    low = result(fidelity={"discrepancy": 0.081, "verdict": "low"})
    sentence, sub = told("low-fidelity", low, hosts=HOSTS)
    assert sentence == "The simulated steps differ from the recorded ones by 8.1 %."
    assert sub == "The limit is 5 %. Naming a worker or a stage would be a guess."


def test_before_the_first_figure_the_steps_that_arrived_are_counted():
    assert told("not-analysed")[0] == "0 of 8 complete steps have arrived."
    assert told("not-analysed", num_steps=1)[0] == "1 of 8 complete steps has arrived."
    assert told("not-analysed", num_steps=3)[0] == "3 of 8 complete steps have arrived."


def test_how_long_the_window_still_takes_is_told_where_a_step_time_is_known():
    sentence, _ = told("not-analysed", num_steps=3, step_s=8.0)
    assert sentence == "3 of 8 complete steps have arrived. About 40 s more."


AT_14_02 = 1_790_085_720.0  # 2026-09-22 14:02 UTC


def test_a_stalled_job_says_since_when_and_how_it_was():
    sentence, _ = told(
        "stalled", result(slowdown=1.03), last_step=3310, since_s=AT_14_02, now_s=AT_14_02 + 725
    )
    assert sentence == (
        "No worker has sent anything since 14:02 UTC. "
        "It was at 1.03\u00d7 of its ideal by step 3,310."
    )


def test_a_stalled_job_without_figures_says_only_since_when():
    sentence, _ = told("stalled", None, since_s=AT_14_02, now_s=AT_14_02 + 36_000)
    assert sentence == "No worker has sent anything since 2026-09-22 14:02 UTC."


@pytest.mark.parametrize(
    ("ranks", "num_others", "sentence"),
    [
        ([12], 1, "Rank 12 has been silent since 14:02 UTC; 1 other goes on."),
        ([12, 13], 1022, "Ranks 12 and 13 have been silent since 14:02 UTC; 1,022 others go on."),
        (
            [*range(1, 51)],
            974,
            "Ranks 1, 2, 3 and 47 more have been silent since 14:02 UTC; 974 others go on.",
        ),
    ],
)
def test_a_job_with_silent_ranks_names_them_and_how_many_go_on(ranks, num_others, sentence):
    seen = {"silent_ranks": ranks, "num_others": num_others}
    known, sub = told("silent", result(), since_s=AT_14_02, now_s=AT_14_02, **seen)
    assert known == sentence
    assert "the figures are those of before" in sub
    assert "there are no figures" in told("silent", None, **seen)[1]


def test_where_it_is_not_known_since_when_nothing_is_made_up():
    assert told("silent", None, silent_ranks=[1], num_others=2)[0] == (
        "Rank 1 has been silent; 2 others go on."
    )


def test_a_job_that_nobody_looks_after_says_so():
    sentence, sub = told("stale", result(), since_s=AT_14_02, now_s=AT_14_02)
    assert sentence == "No consumer is running: nothing is known of this job since 14:02 UTC."
    assert sub == "What its workers send is kept, and analysed once a consumer runs."


def test_a_finished_job_says_how_it_ended():
    sentence, sub = told("finished", result(), hosts=HOSTS)
    assert sentence == "This job has finished. Its last steps ran at 1.42\u00d7 of its ideal."
    assert sub.startswith("dp 1, stage 1 on host-017")


def test_a_finished_job_that_could_not_be_simulated_blames_nobody():
    low = result(fidelity={"discrepancy": 0.2, "verdict": "low"})
    assert told("finished", low)[0] == "This job has finished."


def test_a_finished_job_without_figures_says_so():
    assert "None of its steps was analysed." in told("finished")[0]
