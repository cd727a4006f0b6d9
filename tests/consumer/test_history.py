"""What a consumer remembers of a run's closed windows."""

from dataclasses import replace

from sqlalchemy import update

from app.diagnosis.history_codec import unpack
from app.store.tables import histories
from app.synth.faults.fault import When
from app.synth.faults.uniform_slowdown import UniformSlowdown as EverybodySlower
from tests.consumer.jobs import HEALTHY, SIZES
from tests.consumer.place import DEADLINE_S, step_batches


def remembered(place, epoch=1):
    """Steps of a run's history, as stored."""
    [(_, _, through_step, blob)] = [row for row in place.rows("histories") if row[1] == epoch]
    history = unpack(blob)
    assert history.steps[-1] == through_step
    assert all(len(values) == history.num_steps for values in history.signals.values())
    return history.steps.tolist()


def test_closed_windows_are_remembered_and_open_ones_not_yet(place):
    place.register("job", SIZES)
    consumer = place.consumer()
    place.push("job", HEALTHY, 0, 1)
    place.turns(consumer)
    assert place.rows("histories") == []
    place.push("job", HEALTHY, 2, 3)
    place.turns(consumer)
    assert remembered(place) == [0, 1, 2]
    place.push("job", HEALTHY, 4, 5, 6)
    place.turns(consumer)
    assert remembered(place) == [0, 1, 2, 3, 4, 5]


def test_another_consumer_goes_on_from_what_was_stored(make_place):
    places = [make_place(), make_place()]
    for number, place in enumerate(places):
        place.register("job", SIZES)
        consumer = place.consumer()
        for step in range(8):
            place.push("job", HEALTHY, step)
            place.turns(consumer)
            if number:
                consumer.leases.release_all()
                consumer = place.consumer()
    alone, by_turns = (place.known() for place in places)
    assert remembered(places[1]) == [0, 1, 2, 3, 4, 5]
    assert by_turns == alone


def test_a_revised_window_is_not_remembered_twice(place):
    place.register("job", SIZES)
    consumer = place.consumer()
    late, *others = step_batches(HEALTHY, 1)
    place.push("job", HEALTHY, 0)
    place.append("job", *others)
    place.push("job", HEALTHY, 2, 3)
    place.turns(consumer, num_turns=2, each_s=DEADLINE_S + 1)
    place.turns(consumer)
    assert remembered(place) == [0, 2, 3]
    place.append("job", late)
    place.turns(consumer)
    assert remembered(place) == [0, 1, 2, 3]


def test_each_run_of_a_job_remembers_its_own(place):
    consumer = place.consumer()
    for run_key in ("run-1", "run-2"):
        epoch = place.register("job", SIZES, run_key)
        place.push("job", HEALTHY, 0, 1, 2, epoch=epoch)
        place.turns(consumer)
    assert remembered(place, 1) == remembered(place, 2) == [0, 1, 2]


def test_what_began_windows_ago_is_still_said_of_closed_and_open_windows(place):
    slower = EverybodySlower(slowdown=1.5, when=When(9))
    made = replace(HEALTHY, faults=(slower,))
    place.register("job", SIZES)
    place.push("job", made, *range(19))
    place.turns(place.consumer())
    found = {}
    for first_step, result in place.windows("first_step", "result"):
        causes = {each["cause"]: each["onset_step"] for each in result["findings"]}
        found[first_step] = causes.get("uniform-slowdown")
    assert found == {0: None, 3: None, 6: None, 9: 9, 12: 9, 15: 9, 18: 9}


def test_what_cannot_be_read_is_forgotten_and_the_job_goes_on(place):
    place.register("job", SIZES)
    place.push("job", HEALTHY, 0, 1, 2)
    place.turns(place.consumer())
    with place.store.write() as conn:
        conn.execute(update(histories).values(blob=b"\xc1"))
    place.pass_time(60.0)
    place.push("job", HEALTHY, 3, 4, 5)
    place.turns(place.consumer("consumer-1"))
    assert remembered(place) == [3, 4, 5]
    assert place.windows("first_step", "state") == [(0, "complete"), (3, "complete")]
