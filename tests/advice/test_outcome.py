from dataclasses import replace

import pytest
from msgspec import structs

from app.advice.advise import fix_record
from app.advice.balance_sequences import balance_sequences
from app.advice.facts import Facts
from app.advice.other_schedule import other_schedule
from app.advice.outcome import (
    NUM_MEASURED,
    Prediction,
    Tracked,
    advance,
    advance_all,
    finish_run,
    outcome_sentence,
    predicted_again,
    prediction_of,
)
from app.advice.removed_causes import planned_gc, repair_link
from app.advice.replace_worker import replace_worker
from app.advice.resplit_stages import resplit_stages
from app.advice.seen import seen_in
from app.advice.signs import FollowedWindow
from app.synth.costs import OperationCosts
from app.synth.faults.interruptions import GcPauses, PlannedGc
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import SlowWorker
from app.synth.faults.slow_network import FlappingNic, SlowNic
from app.synth.job import SimulatedJob
from app.synth.schedules import OneFOneB, ZeroBubble
from app.trace.job import Parallelism
from benchmarks.advice.lpt_sequences import LptSequences
from tests.advice.cases import fix_of
from tests.advice.fix_windows import WINDOW_STEPS, case_at, predicted, seen_window, window_at
from tests.results import finding

HEALTHY = SimulatedJob(Parallelism(4, 2, 4), 4)
SLOW = replace(HEALTHY, faults=(SlowWorker(2, 1, 1.6),))
BETTER = replace(HEALTHY, seed=5)


@pytest.fixture(scope="module")
def slow_case():
    return case_at(SLOW)


@pytest.fixture(scope="module")
def replacing(slow_case):
    return predicted(replace_worker, slow_case)


@pytest.fixture(scope="module")
def other_hosts(slow_case):
    hosts = dict(slow_case.replay.window.hosts)
    slow = hosts[2, 1]
    return {worker: "spare-1" if host == slow else host for worker, host in hosts.items()}


def after(tracked: Tracked, *windows: FollowedWindow) -> Tracked:
    for window in windows:
        tracked = advance(tracked, window)
    return tracked


def in_row(job, first_step=WINDOW_STEPS, number=NUM_MEASURED, **given):
    return [window_at(job, first_step + at * WINDOW_STEPS, **given) for at in range(number)]


def test_replaced_worker_is_noticed_by_its_host_and_measured_over_three_windows(
    replacing, other_hosts
):
    # The new run begins again at the last checkpoint.
    found = after(replacing.tracked, *in_row(BETTER, 4, epoch=2, hosts=other_hosts))
    assert (found.state, found.applied_epoch, found.applied_step) == ("measured", 2, 4)
    assert found.achieved == pytest.approx(replacing.speed_up, rel=0.02)
    assert replacing.speed_up > 1.1
    assert len(found.windows) == NUM_MEASURED
    assert found.note is None
    assert outcome_sentence(found, 1.184) == (
        f"worker replaced at step 4: predicted 1.18\u00d7, achieved {found.achieved:.2f}\u00d7"
    )


def test_achieved_is_t_before_over_mean_simulated_step_after(replacing, other_hosts):
    windows = in_row(BETTER, epoch=2, hosts=other_hosts)
    found = after(replacing.tracked, *windows)
    steps_s = [step_s for window in windows for step_s in window.result.step_time_s.simulated]
    assert found.achieved == pytest.approx(replacing.tracked.before_s * len(steps_s) / sum(steps_s))


def test_host_that_is_still_slow_has_won_nothing(replacing, other_hosts):
    found = after(replacing.tracked, *in_row(SLOW, epoch=2, hosts=other_hosts))
    assert found.state == "measured"
    assert found.achieved == pytest.approx(1.0, abs=0.02)


def test_host_that_runs_another_worker_of_the_job_is_not_replaced(replacing, slow_case):
    hosts = dict(slow_case.replay.window.hosts)
    swapped = hosts | {(2, 1): hosts[0, 0], (0, 0): hosts[2, 1]}
    found = after(replacing.tracked, *in_row(SLOW, number=1, epoch=2, hosts=swapped))
    assert found.state == "open"


def test_fault_that_goes_away_in_the_same_run_is_gone_by_itself(replacing):
    first, second = in_row(BETTER, number=2)
    assert after(replacing.tracked, first).state == "open"
    found = after(replacing.tracked, first, second)
    assert (found.state, found.achieved) == ("gone", None)
    assert outcome_sentence(found, 1.2) == "replace-worker: predicted 1.20\u00d7, not applied"


def test_fault_that_goes_away_on_the_same_host_after_a_restart_is_gone_by_itself(replacing):
    assert after(replacing.tracked, *in_row(BETTER, number=2, epoch=2)).state == "gone"


def test_fault_that_pauses_for_one_window_stays_open(replacing):
    tracked = after(
        replacing.tracked, *in_row(BETTER, number=1), window_at(SLOW, 16), window_at(BETTER, 24)
    )
    assert tracked.state == "open"
    assert tracked.num_there == 2


def test_worker_without_a_host_name_is_replaced_if_a_new_run_is_healthy():
    tracked = predicted(replace_worker, case_at(SLOW, hosts={})).tracked
    tracked = advance(tracked, window_at(SLOW, 8, hosts={}))
    healthy = in_row(BETTER, 16, epoch=2, hosts={})
    assert advance(tracked, healthy[0]).state == "open"
    found = after(tracked, *healthy)
    assert (found.state, found.applied_step) == ("measured", 16)
    assert after(tracked, *in_row(BETTER, 16, hosts={})).state == "gone", "without a new run"


def test_other_number_of_micro_batches_is_not_compared(replacing, other_hosts):
    larger = replace(BETTER, num_microbatches=16)
    found = after(replacing.tracked, window_at(larger, 8, 2, hosts=other_hosts))
    assert (found.state, found.achieved) == ("not-comparable", None)
    # Once it is noticed, the windows before the change count.
    tracked = after(replacing.tracked, *in_row(BETTER, number=1, epoch=2, hosts=other_hosts))
    found = advance(tracked, window_at(larger, 24, 3, hosts=other_hosts))
    assert (found.state, len(found.windows)) == ("measured", 1)


def test_revisions_and_replays_of_windows_count_once(replacing, other_hosts):
    windows = in_row(BETTER, epoch=2, hosts=other_hosts)
    once = after(replacing.tracked, *windows)
    again = after(
        replacing.tracked, windows[0], windows[0], windows[1], windows[0], windows[1], windows[2]
    )
    assert again == once
    assert after(once, *windows) == once
    slow = window_at(SLOW, 8)
    assert after(replacing.tracked, slow, slow, slow).num_there == 2


def test_revision_of_a_measured_window_replaces_it(replacing, other_hosts):
    first = window_at(BETTER, 8, 2, hosts=other_hosts)
    times = structs.replace(first.result.step_time_s, simulated=(9.0,))
    partial = replace(first, result=structs.replace(first.result, step_time_s=times, steps=(8,)))
    wrong = advance(replacing.tracked, partial)
    assert wrong.achieved == pytest.approx(replacing.tracked.before_s / 9.0)
    assert advance(wrong, first) == advance(replacing.tracked, first)


def test_windows_up_to_the_prediction_change_nothing(replacing, slow_case):
    assert advance(replacing.tracked, seen_window(slow_case)) == replacing.tracked


def test_end_of_the_run_makes_fewer_windows_final(replacing, other_hosts):
    tracked = after(replacing.tracked, *in_row(BETTER, number=1, epoch=2, hosts=other_hosts))
    assert tracked.state == "applied"
    assert finish_run(tracked, 1) == tracked
    assert finish_run(tracked, 2) == replace(tracked, state="measured")
    assert finish_run(replacing.tracked, 1) == replacing.tracked


def renamed(hosts):
    return {worker: f"{host}-xk2p" for worker, host in hosts.items()}


def test_new_names_for_all_hosts_replace_no_worker(replacing, slow_case):
    hosts = renamed(slow_case.replay.window.hosts)
    assert after(replacing.tracked, *in_row(SLOW, epoch=2, hosts=hosts)).state == "open"


def test_all_hosts_are_new_and_the_finding_is_gone_replaces_the_worker(replacing, slow_case):
    persisted = advance(replacing.tracked, window_at(SLOW, 8))
    hosts = renamed(slow_case.replay.window.hosts)
    windows = in_row(BETTER, 16, epoch=2, hosts=hosts)
    assert advance(persisted, windows[0]).state == "open", "one window only"
    assert after(persisted, *windows).state == "measured"


def test_worker_whose_host_is_not_known_any_more_tells_nothing(replacing, other_hosts):
    hosts = {worker: host for worker, host in other_hosts.items() if worker != (2, 1)}
    window = window_at(BETTER, 8, 2, hosts=hosts)
    assert seen_in(replacing.tracked.sign, window) == "unknown"
    unnamed = replace(window, window=replace(window.window, hosts={}))
    assert seen_in(replacing.tracked.sign, unnamed) == "unknown"


def test_other_model_under_the_same_job_name_is_not_compared(replacing, other_hosts):
    for factor in (0.5, 1.3):
        base = OperationCosts()
        costs = OperationCosts(
            forward_s=base.forward_s * factor, backward_s=base.backward_s * factor
        )
        window = window_at(replace(BETTER, costs=costs), 4, 2, hosts=other_hosts)
        found = advance(replacing.tracked, window)
        assert (found.state, found.achieved) == ("not-comparable", None)
        assert "other work" in (found.note or "")
    same_run = window_at(replace(BETTER, costs=costs), 8)
    assert advance(replacing.tracked, same_run).state == "open"


# Pipeline stages: a loss that costs as much as five layers, as in test_resplit_stages.py.
def with_layers(*counts: int, seed: int = 1) -> SimulatedJob:
    work = [number / 8 for number in counts]
    work[-1] += 5 / 8
    costs = OperationCosts(noise=0.01, stage_factors=tuple(work))
    return SimulatedJob(Parallelism(2, len(counts), 1), 8, costs=costs, seed=seed)


@pytest.fixture(scope="module")
def splitting() -> Prediction:
    return predicted(resplit_stages, case_at(with_layers(8, 8, 8, 8), facts=Facts(layers=32)))


def test_predicted_split_is_noticed_by_the_shares_of_the_stages(splitting):
    assert splitting.title == "Give the stages 10/9/9/4 layers, not 8/8/8/8"
    found = after(splitting.tracked, *in_row(with_layers(10, 9, 9, 4, seed=4), epoch=2))
    assert found.state == "measured"
    assert found.achieved == pytest.approx(splitting.speed_up, rel=0.02)
    assert splitting.speed_up > 1.1
    work = [10 / 37, 9 / 37, 9 / 37, 9 / 37]
    assert splitting.tracked.sign.predicted_shares == pytest.approx(work, rel=0.01)


def test_slow_worker_of_the_long_part_is_no_other_split():
    job = SimulatedJob(Parallelism(2, 2, 1), 4, costs=OperationCosts(stage_factors=(1.0, 1.3)))
    splitting = predicted(resplit_stages, case_at(job, facts=Facts(layers=24)))
    for factor in (1.2, 1.6):
        slow = window_at(replace(job, seed=3, faults=(SlowWorker(0, 0, factor),)), 4, 2)
        assert advance(splitting.tracked, slow).state == "open"


def test_split_with_a_new_slow_worker_is_not_accepted(splitting):
    window = window_at(with_layers(10, 9, 9, 4, seed=4), 8, 2)
    assert seen_in(splitting.tracked.sign, window) == "applied"
    found = (*(window.result.findings or ()), finding("slow-worker", culprits=[]))
    window = replace(window, result=structs.replace(window.result, findings=found))
    assert seen_in(splitting.tracked.sign, window) == "unknown"


# Garbage collection.
PAUSES = replace(HEALTHY, faults=(GcPauses(rate=0.1, pause_s=0.3),))


@pytest.fixture(scope="module")
def collecting() -> Prediction:
    return predicted(planned_gc, case_at(PAUSES))


def test_pauses_that_are_gone_for_three_windows_of_a_new_run_were_planned(collecting):
    persisted = advance(collecting.tracked, window_at(PAUSES, 8))
    windows = in_row(BETTER, 16, epoch=2)
    assert after(persisted, *windows[:2]).state == "open"
    found = after(persisted, *windows)
    assert (found.state, found.applied_step) == ("measured", 16)
    assert found.achieved == pytest.approx(collecting.speed_up, rel=0.03)


def test_pauses_seen_in_one_window_only_are_ignored(collecting):
    assert after(collecting.tracked, *in_row(BETTER, 8, epoch=2)).state == "gone"


def test_pauses_that_stop_without_a_restart_went_away_by_themselves(collecting):
    persisted = advance(collecting.tracked, window_at(PAUSES, 8))
    assert after(persisted, *in_row(BETTER, 16)).state == "gone"


def test_pauses_that_come_and_go_were_not_planned(collecting):
    windows = [
        *(window_at(PAUSES, 8), window_at(BETTER, 16), window_at(PAUSES, 24)),
        *in_row(BETTER, 32, epoch=2),
    ]
    found = after(collecting.tracked, *windows)
    assert (found.state, found.achieved) == ("gone", None)


def test_collections_found_as_planned_are_proof(collecting):
    planned = replace(HEALTHY, seed=5, faults=(PlannedGc(every_steps=4, pause_s=0.3),))
    window = window_at(planned, 8, 2)
    assert "gc-pause" in window.causes
    assert advance(collecting.tracked, window).applied_at == (2, 8)


# Links.
SLOW_LINK = replace(HEALTHY, faults=(SlowNic(2, 0, 8.0),))


def test_link_of_another_host_is_repaired():
    case = case_at(SLOW_LINK)
    prediction = predicted(repair_link, case)
    old = {host for _, _, host in prediction.tracked.sign.workers}
    now = {
        at: f"spare-{host}" if host in old else host
        for at, host in case.replay.window.hosts.items()
    }
    found = after(prediction.tracked, *in_row(BETTER, 8, epoch=2, hosts=now))
    assert (found.state, found.applied_epoch, found.applied_step) == ("measured", 2, 8)
    assert found.achieved == pytest.approx(prediction.speed_up, rel=0.03)


def test_quiet_link_on_the_same_host_is_not_called_repaired():
    prediction = predicted(repair_link, case_at(SLOW_LINK))
    persisted = advance(prediction.tracked, window_at(SLOW_LINK, 8))
    for epoch in (1, 2):
        found = after(persisted, *in_row(BETTER, 16, 2, epoch=epoch))
        assert (found.state, found.achieved) == ("gone", None)
        assert found.note == "no longer found: repaired, or quiet"


def test_flapping_link_is_never_called_repaired():
    job = replace(HEALTHY, faults=(FlappingNic(2, 0, 8.0, 0.2),))
    windows = in_row(job, 0, 8)
    at = next(at for at, each in enumerate(windows) if "flapping-link" in each.causes)
    tracked = predicted(repair_link, case_at(job, 8 * at)).tracked
    assert after(tracked, *windows[at + 1 :]).state in ("open", "gone")


# Several fixes of one job.
BOTH = replace(HEALTHY, faults=(SlowWorker(2, 1, 1.6), GcPauses(rate=0.1, pause_s=0.3)))


@pytest.fixture(scope="module")
def two():
    case = case_at(BOTH)
    return [predicted(each, case).tracked for each in (replace_worker, planned_gc)]


def followed(tracked, *windows):
    for window in windows:
        tracked = advance_all(tracked, window)
    return tracked


def test_prediction_from_before_another_fix_expires(two, other_hosts):
    found = followed(two, *in_row(PAUSES, epoch=2, hosts=other_hosts))
    assert [each.state for each in found] == ["measured", "expired"]
    assert found[1].note == "replace-worker was applied since: predict it again"


def test_fixes_applied_at_once_say_that_the_gain_is_of_both(two, other_hosts):
    planned, replaced = two[::-1]
    sign = replace(planned.sign, kind="structure", shape=replace(planned.sign.shape, order="other"))
    found = followed(
        [replace(planned, sign=sign), replaced], *in_row(BETTER, epoch=2, hosts=other_hosts)
    )
    assert [each.state for each in found] == ["measured", "measured"]
    assert "applied together with planned-gc" in found[1].note
    assert "applied together with replace-worker" in found[0].note


def test_second_fix_ends_the_measurement_of_the_first(two, other_hosts):
    first, *rest = in_row(PAUSES, epoch=2, hosts=other_hosts)
    replaced, _ = followed(two, first)
    again = predicted(planned_gc, case_at(PAUSES, 8, 2, hosts=other_hosts)).tracked
    # As if it had been predicted in the run before.
    sign = replace(
        again.sign, kind="structure", epoch=1, shape=replace(again.sign.shape, order="other")
    )
    found = followed([replaced, replace(again, sign=sign)], rest[0])
    assert [each.state for each in found] == ["measured", "applied"]
    assert [each.first_step for each in found[0].windows] == [8]


def test_newer_prediction_keeps_in_how_many_windows_the_cause_was_found(collecting):
    persisted = advance(collecting.tracked, window_at(PAUSES, 8))
    newer = predicted(planned_gc, case_at(PAUSES, 8)).tracked
    assert predicted_again(persisted, newer) == replace(newer, num_there=2)


def test_fix_that_no_operation_shows_is_not_followed(slow_case):
    fix = structs.replace(fix_record(fix_of(replace_worker(slow_case))), fix="straggl-ar")
    assert prediction_of(fix, seen_window(slow_case)) is None


# Sequences: the same documents, dealt out to the dp ranks by their work.
SEQUENCES = SequenceImbalance(attention_share=0.4, full_share=0.03)
DEALT_OUT = LptSequences(attention_share=0.4, full_share=0.03, documents_seed=3)
UNEVEN = SimulatedJob(Parallelism(4, 2, 4), 8, seed=3, faults=(SEQUENCES,))
DEALT = replace(UNEVEN, faults=(DEALT_OUT,), seed=9)


@pytest.fixture(scope="module")
def balancing() -> Prediction:
    return predicted(balance_sequences, case_at(UNEVEN))


def test_sequences_dealt_out_evenly_are_noticed_by_the_work_of_the_ranks(balancing):
    persisted = advance(balancing.tracked, window_at(UNEVEN, 8))
    assert persisted.num_there == 2
    windows = in_row(DEALT, 16, epoch=2)
    # Micro-batches still differ in length: the cause itself is not gone.
    assert all("sequence-imbalance" in each.causes for each in windows)
    found = after(persisted, *windows)
    assert (found.state, found.applied_step) == ("measured", 16)
    assert found.achieved == pytest.approx(balancing.speed_up, rel=0.05)


def test_slow_rank_does_not_make_the_work_uneven():
    slow = replace(HEALTHY, faults=(SlowWorker(2, 1, 3.0),))
    assert window_at(slow, 0).imbalance < 1.02
    assert window_at(UNEVEN, 0).imbalance > 1.1


# Schedules.
ONE_F_ONE_B = replace(HEALTHY, schedule=OneFOneB())


@pytest.fixture(scope="module")
def scheduling() -> Prediction:
    """Of the zero-bubble schedule: its gain is larger than that of smaller micro-batches."""
    found = predicted(other_schedule, case_at(ONE_F_ONE_B))
    sign = replace(found.tracked.sign, predicted_microbatches=None)
    return replace(found, tracked=replace(found.tracked, sign=sign))


@pytest.fixture(scope="module")
def doubling(scheduling: Prediction) -> Tracked:
    sign = replace(scheduling.tracked.sign, predicted_microbatches=8)
    return replace(scheduling.tracked, sign=sign)


def test_other_schedule_is_noticed_after_any_number_of_unchanged_windows(scheduling):
    unchanged = after(scheduling.tracked, *in_row(ONE_F_ONE_B, number=5))
    assert (unchanged.state, unchanged.num_there) == ("open", 6)
    other = replace(ONE_F_ONE_B, schedule=ZeroBubble(), seed=8)
    found = after(unchanged, *in_row(other, 48, epoch=2))
    assert (found.state, found.applied_step) == ("measured", 48)


def test_more_micro_batches_count_only_as_predicted(scheduling, doubling):
    base = OperationCosts()
    halves = OperationCosts(forward_s=base.forward_s / 2, backward_s=base.backward_s / 2)
    half_size = replace(ONE_F_ONE_B, num_microbatches=8, costs=halves)
    ramp_up = replace(ONE_F_ONE_B, num_microbatches=8)
    window = window_at(half_size, 8, 2)
    assert advance(doubling, window).state == "applied"
    assert advance(scheduling.tracked, window).state == "not-comparable"
    assert advance(doubling, window_at(half_size, 8)).state == "open", "in the same run"
    larger_batch = advance(doubling, window_at(ramp_up, 8, 2))
    assert larger_batch.state == "not-comparable"
    assert advance(doubling, window_at(ONE_F_ONE_B, 8, 2)).state == "open"
