"""Charts of the fleet over time, compared with the stored windows."""

import dataclasses

import pytest

from app.store import fleet
from app.store.fleet import Loss
from app.trace.job import job_key
from tests.api.server import NOW_S, window_record

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0
CHARTS = ("waste", "causes", "optypes", "sizes", "planned")


async def lose(api, job_id, *found, first_step=0, ago_s=0.0, gpus=4):
    await api.register(job_id, gpus=gpus)
    record = dataclasses.replace(window_record(first_step), updated_s=NOW_S - ago_s)
    api.save_window(record, job_id)
    with api.store.write() as conn:
        fleet.save_losses(conn, job_key("default", job_id), record, found, num_gpus=gpus)


async def chart(api, name, **query):
    answer = await api.client.get(f"/api/v1/fleet/charts/{name}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def total(lost_hours, hours):
    return Loss("total", "", 3600.0 * lost_hours, 3600.0 * hours, 1.25)


async def test_empty_fleet_has_no_charts(api):
    await api.register()
    for name in CHARTS:
        answer = await api.client.get(f"/api/v1/fleet/charts/{name}")
        assert (answer.status_code, answer.content) == (204, b"")


async def test_causes_and_op_types_are_shares_of_the_loss(api):
    causes = Loss("cause", "slow-worker", 7200.0), Loss("cause", "not-explained", 1800.0)
    types = Loss("optype", "forward-compute", 5400.0), Loss("optype", "gc", 1800.0)
    await lose(api, "one", total(2.0, 10.0), *causes, *types)
    await lose(api, "two", total(2.0, 10.0), Loss("cause", "gc-pause", 3600.0))
    assert (await chart(api, "causes"))["meta"]["table"]["rows"] == [
        ["Slow worker", "2.0", "50 %"],
        ["Garbage collection", "1.0", "25 %"],
        ["Not explained", "0.5", "12 %"],
    ]
    assert (await chart(api, "optypes"))["meta"]["table"]["rows"] == [
        ["Forward compute", "1.5", "75 %"],
        ["Garbage collection", "0.5", "25 %"],
    ]


async def test_losses_are_summed_by_day_within_the_period(api):
    await lose(api, "one", total(1.0, 10.0))
    await lose(api, "one", total(2.0, 10.0), first_step=2)
    await lose(api, "one", total(4.0, 10.0), first_step=4, ago_s=2 * DAY_S)
    await lose(api, "one", total(8.0, 10.0), first_step=6, ago_s=9 * DAY_S)
    rows = (await chart(api, "planned", days=9))["meta"]["table"]["rows"]
    assert len(rows) == 7
    assert rows[-3:] == [
        ["2026-09-19", "10", "6.0", "4.0"],
        ["2026-09-20", "0.0", "0.0", "0.0"],
        ["2026-09-21", "20", "17", "3.0"],
    ]
