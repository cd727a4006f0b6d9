"""Advice about a closed window over HTTP: the fixes of its findings, and of some of its steps."""

import dataclasses
from functools import cache

import pytest
from msgspec import structs

from app.advice import advise as advising
from app.advice.advise import advice_record
from app.advice.facts import Facts, facts_of
from app.engine.replays import prepare
from app.monitor import advice_case, observe
from app.result.stored import split_by_step
from app.store import hosts
from app.synth.faults.slow_compute import LongLastStage, SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.window import SkippedStep
from tests.api.server import KEY, closed_again, recorded_record, with_result

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b/windows"
SIZES = Parallelism(2, 4, 8)
JOB = SimulatedJob(SIZES, 8, faults=(SlowWorker(1, 1, 1.6), LongLastStage()), name="llm-70b")
NUM_STEPS = 6


@cache
def window(first_step=0):
    steps = range(first_step, first_step + NUM_STEPS)
    return dataclasses.replace(JOB.record(steps).window(), epoch=1)


@cache
def record(first_step=0):
    """The window with its findings, as the consumer stores it."""
    made = window(first_step)
    result, per_step = split_by_step(observe(made).result)
    return dataclasses.replace(recorded_record(made), result=result, per_step=per_step)


async def given(api, *records):
    sizes = {"dp_size": SIZES.dp_size, "pp_size": SIZES.pp_size, "tp_size": SIZES.tp_size}
    await api.register(parallelism=sizes)
    with api.store.write() as conn:
        hosts.save(conn, KEY, 1, dict(window().hosts))
    for each in records:
        api.save_window(each)


async def got(api, window="latest", **query):
    answer = await api.client.get(f"{PATH}/{window}/advice", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refused(api, window="latest", **query):
    answer = await api.client.get(f"{PATH}/{window}/advice", params=query)
    assert not answer.is_success, answer.text
    return answer.status_code, answer.json()


def names(found):
    return {each["fix"] for each in found["fixes"]}


async def test_fixes_are_those_of_the_stored_findings(api):
    await given(api, record())
    found = await got(api, layers=36)
    assert (found["window"], found["steps"], found["withheld"]) == ("1-0", [0, 1, 2, 3, 4, 5], None)
    assert {"replace-worker", "resplit-stages"} <= names(found)
    best = found["fixes"][0]
    assert best["speed_up"] == pytest.approx(best["step_s_before"] / best["step_s"])
    order = [(each["cause"] is None, -each["speed_up"]) for each in found["fixes"]]
    assert order == sorted(order)
    assert found["together"]["speed_up"] > best["speed_up"]


async def test_a_cause_that_was_not_stored_has_no_fix(api):
    made = record()
    kept = [finding for finding in made.result.findings or () if finding.cause == "slow-worker"]
    await given(api, with_result(made, findings=kept))
    found = await got(api, layers=36)
    assert "replace-worker" in names(found)
    assert "resplit-stages" not in names(found)


async def test_edits_of_a_fix_are_a_what_if_question_with_the_same_answer(api):
    await given(api, record())
    (fix,) = [each for each in (await got(api))["fixes"] if each["fix"] == "replace-worker"]
    asked = await api.client.post(f"{PATH}/latest/what-if", json={"edits": fix["what_if"]})
    times_s = asked.json()["step_time_s"]
    assert sum(times_s["what_if"]) / NUM_STEPS == pytest.approx(fix["step_s"])
    assert sum(times_s["simulated"]) / NUM_STEPS == pytest.approx(fix["step_s_before"])


async def test_chosen_steps_are_diagnosed_by_themselves(api):
    await given(api, record())
    found = await got(api, "1-0", steps="2-4", layout="9,9,9,9")
    assert found["steps"] == [2, 3, 4]
    stored = api.app.state.service.replays.get(KEY, "1-0").window
    case = advice_case(prepare(stored.only([2, 3, 4])), facts_of(layout="9,9,9,9"))
    expected = advice_record(advising.advise(case))
    assert names(found) == {fix.fix for fix in expected.fixes} != set()
    assert found["fixes"][0]["step_s"] == pytest.approx(expected.fixes[0].step_s)
    assert found["fixes"][0]["step_s"] != (await got(api, layout="9,9,9,9"))["fixes"][0]["step_s"]


async def test_missing_facts_are_asked_for_and_complete_the_fixes(api):
    await given(api, record())
    asking = await got(api)
    (resplit,) = [each for each in asking["not_offered"] if each["fix"] == "resplit-stages"]
    assert resplit["needs"] == [{"fact": "layers", "text": "the model's layers"}]
    facts = {"scheduler": "slurm", "restart_minutes": 10, "checkpoint_minutes": 30}
    known = await got(api, layers=36, **facts)
    (replace,) = [each for each in known["fixes"] if each["fix"] == "replace-worker"]
    assert (replace["needs"], replace["stop_minutes"]) == ([], 25)
    assert replace["pays_after_minutes"] > 25
    assert all("kubectl" not in each["text"] for each in replace["paste"])
    assert (await got(api))["not_offered"] == asking["not_offered"]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"layers": 32, "layout": "8,8,8,8"}, "either layers"),
        ({"layers": 0}, "greater than or equal to 1"),
        ({"layers": 1001}, "less than or equal to 1000"),
        ({"layout": "8,x"}, "a whole number of layers for each stage"),
        ({"layout": "0,0,0,0"}, "at least 1 and at most 1000"),
        ({"layout": "1," * 3000 + "1"}, "at most 2048 characters"),
        ({"scheduler": "cron"}, "'slurm' or 'kubernetes'"),
        ({"restart_minutes": -1}, "greater than or equal to 0"),
        ({"restart_minutes": "nan"}, "less than or equal to 10080"),
        ({"checkpoint_minutes": "inf"}, "less than or equal to 10080"),
        ({"steps": "77"}, "step 77 is no complete step"),
        ({"steps": "x"}, "names no step"),
    ],
)
async def test_facts_outside_their_limits_get_422_with_a_reason(api, query, reason):
    await given(api, record())
    status, problem = await refused(api, **query)
    assert status == 422
    assert reason in problem["detail"] + str(problem.get("errors"))


async def test_windows_that_cannot_be_replayed_are_refused_as_by_what_if(api):
    assert (await refused(api))[0] == 404
    await given(api, record())
    assert (await refused(api, "1-77"))[0] == 404
    assert (await refused(api, "1-0..1-8"))[0] == 422
    api.save_window(recorded_record(dataclasses.replace(window(8), state="open")))
    status, problem = await refused(api, "1-8")
    assert status == 409
    assert "newest closed one is 1-0" in problem["detail"]
    api.save_window(closed_again(record(16), trace=None))
    assert "have been deleted" in (await refused(api, "1-16"))[1]["detail"]


async def test_window_without_steps_withholds_with_the_reason(api):
    await given(api, record())
    skipped = {"steps": (), "skipped": (SkippedStep(8, "rank 3 did not report"),)}
    silent = dataclasses.replace(window(8), **skipped)
    made = dataclasses.replace(
        record(8), result=split_by_step(observe(silent).result)[0], num_steps=0, trace=None
    )
    api.save_window(made)
    found = await got(api, "1-8", layers=36)
    assert (found["fixes"], found["together"], found["not_offered"]) == ([], None, [])
    assert "step 8: rank 3 did not report" in found["withheld"]
    assert (await got(api))["window"] == "1-0"


async def test_low_fidelity_withholds(api):
    await given(api)
    made = record()
    fidelity = structs.replace(made.result.fidelity, verdict="low", discrepancy=0.2)
    api.save_window(with_result(made, fidelity=fidelity))
    assert "too far from the record" in (await got(api))["withheld"]


async def test_answer_is_computed_once_for_each_revision_and_facts(api, monkeypatch):
    await given(api, record())
    asked = []

    def count(case):
        asked.append(case.facts)
        return advising.advise(case)

    monkeypatch.setattr("app.api.routes.windows.advice.advise", count)
    for _ in range(2):
        await got(api)
        await got(api, "1-0", layers=36)
        await got(api, steps="2-4")
    assert asked == [Facts(), Facts(layers=36), Facts()]
    api.save_window(closed_again(record()))
    await got(api)
    assert len(asked) == 4
