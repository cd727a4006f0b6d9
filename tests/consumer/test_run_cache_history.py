"""History of a run's closed windows."""

from dataclasses import replace

from sqlalchemy import update

from app.diagnosis.job_history import unpack
from app.store.tables import histories
from app.synth.faults.fault import FaultSteps
from app.synth.faults.slow_compute import UniformSlowdown as EverybodySlower
from tests.consumer.jobs import HEALTHY, SIZES
from tests.consumer.twin import DEADLINE_S, step_batches


def history_steps(twin, epoch=1):
    """Steps of a run's history, as stored."""
    [(_, _, through_step, blob)] = [row for row in twin.rows("histories") if row[1] == epoch]
    history = unpack(blob)
    assert history.steps[-1] == through_step
    assert all(len(values) == history.num_steps for values in history.signals.values())
    return history.steps.tolist()


def test_history_has_closed_windows_only(twin):
    twin.register("job", SIZES)
    consumer = twin.consumer()
    twin.push("job", HEALTHY, 0, 1)
    twin.turns(consumer)
    assert twin.rows("histories") == []
    twin.push("job", HEALTHY, 2, 3)
    twin.turns(consumer)
    assert history_steps(twin) == [0, 1, 2]
    twin.push("job", HEALTHY, 4, 5, 6)
    twin.turns(consumer)
    assert history_steps(twin) == [0, 1, 2, 3, 4, 5]


def test_another_consumer_continues_the_stored_history(make_twin):
    twins = [make_twin(), make_twin()]
    for number, twin in enumerate(twins):
        twin.register("job", SIZES)
        consumer = twin.consumer()
        for step in range(8):
            twin.push("job", HEALTHY, step)
            twin.turns(consumer)
            if number:
                consumer.leases.release_all()
                consumer = twin.consumer()
    alone, by_turns = (twin.known() for twin in twins)
    assert history_steps(twins[1]) == [0, 1, 2, 3, 4, 5]
    assert by_turns == alone


def test_revised_window_is_in_the_history_once(twin):
    twin.register("job", SIZES)
    consumer = twin.consumer()
    late, *others = step_batches(HEALTHY, 1)
    twin.push("job", HEALTHY, 0)
    twin.append("job", *others)
    twin.push("job", HEALTHY, 2, 3)
    twin.turns(consumer, num_turns=2, each_s=DEADLINE_S + 1)
    twin.turns(consumer)
    assert history_steps(twin) == [0, 1, 2, 3], "step 1 with the late rank imputed"
    twin.append("job", late)
    twin.turns(consumer)
    assert history_steps(twin) == [0, 1, 2, 3]


def test_each_run_of_a_job_has_its_own_history(twin):
    consumer = twin.consumer()
    for run_key in ("run-1", "run-2"):
        epoch = twin.register("job", SIZES, run_key)
        twin.push("job", HEALTHY, 0, 1, 2, epoch=epoch)
        twin.turns(consumer)
    assert history_steps(twin, 1) == history_steps(twin, 2) == [0, 1, 2]


def test_onset_of_earlier_windows_is_kept(twin):
    slower = EverybodySlower(slowdown=1.5, when=FaultSteps(9))
    made = replace(HEALTHY, faults=(slower,))
    twin.register("job", SIZES)
    twin.push("job", made, *range(19))
    twin.turns(twin.consumer())
    found = {}
    for first_step, result in twin.windows("first_step", "result"):
        causes = {finding.cause: finding.onset_step for finding in result.findings}
        found[first_step] = causes.get("uniform-slowdown")
    assert found == {0: None, 3: None, 6: None, 9: 9, 12: 9, 15: 9, 18: 9}


def test_unreadable_history_is_dropped(twin):
    twin.register("job", SIZES)
    twin.push("job", HEALTHY, 0, 1, 2)
    twin.turns(twin.consumer())
    with twin.store.write() as conn:
        conn.execute(update(histories).values(blob=b"\xc1"))
    twin.pass_time(60.0)
    twin.push("job", HEALTHY, 3, 4, 5)
    twin.turns(twin.consumer("consumer-1"))
    assert history_steps(twin) == [3, 4, 5]
    assert twin.windows("first_step", "state") == [(0, "complete"), (3, "complete")]
