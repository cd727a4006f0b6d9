"""Windows by clock times."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from app.store import windows
from tests.api.server import KEY, NOW_S, window_record

pytestmark = pytest.mark.anyio

JOB = "/api/v1/jobs/llm-70b"
FIRST_S = NOW_S - 3_600.0  # when step 0 started; a step takes a minute


def at(minutes: float) -> str:
    return datetime.fromtimestamp(FIRST_S + 60 * minutes, UTC).isoformat()


async def timed_job(api, *, is_known=True):
    """Three windows of two steps, one started every minute."""
    await api.register()
    for first_step in (0, 2, 4):
        api.save_window(window_record(first_step))
    with api.store.write() as conn:
        rows = windows.step_series(conn, KEY)
        timed = [replace(row, started_s=FIRST_S + 60 * row.step) for row in rows]
        windows.save_steps(conn, KEY, timed if is_known else rows)


async def asked(api, **query):
    return await api.client.get(f"{JOB}/time-range", params=query)


@pytest.mark.parametrize(
    ("query", "window"),
    [
        ({"from": at(2), "to": at(3)}, "1-2"),
        ({"from": at(1), "to": at(2.5)}, "1-0..1-2"),
        ({"from": at(3)}, "1-2..1-4"),
        ({"to": at(0)}, "1-0"),
        ({"from": "last-1m"}, "1-4"),
        ({"from": "last-1h"}, "1-0..1-4"),
        ({}, "1-0..1-4"),
    ],
)
async def test_the_windows_of_the_steps_that_started_then(api, query, window):
    await timed_job(api)
    answer = await asked(api, **query)
    assert answer.status_code == 200, answer.text
    assert answer.json()["window"] == window
    shown = await api.client.get(f"{JOB}/windows/{window}")
    assert shown.status_code == 200


async def test_a_time_without_steps_is_refused_with_the_times_that_have_some(api):
    await timed_job(api)
    answer = await asked(api, **{"from": at(10), "to": at(20)})
    assert (answer.status_code, answer.json()["code"]) == (404, "no_step_then")
    first, last = (f"{datetime.fromisoformat(at(each)):%H:%M} UTC" for each in (0, 5))
    assert f"choose a time between {first} and {last}" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("query", "words"), [({"to": at(-10)}, "started before"), ({"from": at(10)}, "started after")]
)
async def test_one_end_beyond_the_run_is_a_time_without_steps(api, query, words):
    await timed_job(api)
    answer = await asked(api, **query)
    assert (answer.status_code, answer.json()["code"]) == (404, "no_step_then")
    assert words in answer.json()["detail"]


async def test_a_job_of_unknown_times_says_so(api):
    await timed_job(api, is_known=False)
    answer = await asked(api)
    assert answer.status_code == 404
    assert "times of the steps of job 'llm-70b' are not known" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"from": at(3), "to": at(1)}, "`from` is later than `to`"),
        ({"from": "yesterday"}, "`from` is no time: want a time with its zone"),
        ({"to": "last-15m"}, "`to` is no time"),
    ],
)
async def test_times_that_are_none_are_refused_in_words(api, query, reason):
    await timed_job(api)
    answer = await asked(api, **query)
    assert answer.status_code == 422
    assert reason in answer.json()["detail"]


async def test_steps_and_ribbon_have_the_times(api):
    await timed_job(api)
    steps = (await api.client.get(f"{JOB}/steps")).json()["items"]
    assert datetime.fromisoformat(steps[3]["started_at"]).timestamp() == FIRST_S + 180
    bins = (await api.client.get(f"{JOB}/ribbon")).json()["bins"]
    assert datetime.fromisoformat(bins[1]["first_at"]).timestamp() == FIRST_S + 120
    assert datetime.fromisoformat(bins[1]["last_at"]).timestamp() == FIRST_S + 180


async def test_charts_over_steps_have_a_clock(api):
    await timed_job(api)
    figure = (await api.client.get(f"{JOB}/charts/steps")).json()
    assert figure["meta"]["clock"]["started_s"][2] == FIRST_S + 120
    assert "<br>" in figure["layout"]["xaxis"]["ticktext"][0]
