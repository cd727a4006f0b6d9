"""The fleet: job list, summary, search, order and pages."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from app.formatting import utc_timestamp
from app.result.brief import brief_of
from app.result.finding import ObservationRecord
from app.store import fleet, hosts, runs, shards
from app.trace.job import job_key
from tests.api.server import NOW_S, PARALLELISM, window_record, with_result
from tests.results import idle
from tests.store.findings import finding

pytestmark = pytest.mark.anyio

PATH = "/api/v1/fleet"
LENGTHS = finding("sequence-imbalance", culprits=[], persistence="rotating", onset_step=None)


@dataclass
class SavedWindow:
    """A job's only window, as a consumer saves it."""

    slowdown: float | None = 1.25
    findings: Any = ()
    verdict: str = "ok"
    first_step: int = 4
    observations: Any = ()


async def add(api, job_id, saved: SavedWindow | None = None, **registered):
    """Register a job with recent data and a window."""
    await api.register(job_id, **registered)
    key = job_key("default", job_id)
    with api.store.write() as conn:
        runs.note_data(conn, key, last_data_s=api.clock(), last_step=5, epoch=1)
        shards.heartbeat(conn, "consumer-0", now_s=api.clock(), lease_s=1e6)
    if saved is not None:
        record = window_record(saved.first_step, slowdown=saved.slowdown, verdict=saved.verdict)
        at = utc_timestamp(api.clock())
        found = saved.findings
        if found is not None:
            found = [replace(each, onset_at=each.onset_at or at) for each in found]
        record = with_result(record, findings=found, observations=saved.observations)
        api.save_window(record, job_id)
        with api.store.write() as conn:
            brief = brief_of(record.result, num_gpus=4)
            fleet.save_brief(conn, key, 1, record.first_step, brief)
            lost = fleet.losses_of(record.result, num_gpus=4)
            fleet.save_losses(conn, key, record, lost, num_gpus=4)


def silence(api, job_id, **given):
    ranks = given.get("silent_ranks", ())
    silent = runs.SilentRanks(ranks, ranks)._replace(**given)
    with api.store.write() as conn:
        runs.save_silent_ranks(conn, job_key("default", job_id), 1, silent)


async def ask(api, **query):
    answer = await api.client.get(PATH, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def names(api, **query):
    return [item["job_id"] for item in (await ask(api, **query))["items"]]


async def test_straggling_job_has_slowdown_loss_and_cause(api):
    await add(
        api, "slow", SavedWindow(findings=[finding(), LENGTHS]), labels={"owner": "ann"}, gpus=8
    )
    [line] = (await ask(api))["items"]
    assert line == {
        **{"job_id": "slow", "name": "slow", "state": "straggling", "lifecycle": "active"},
        **{"as_of": "2026-09-21T14:13:20Z", "behind_s": 0.0},
        "parallelism": PARALLELISM
        | {"tp_size": 1, "vpp_size": 1, "dsp_size": 1, "ep_size": 1, "world_size": 4},
        "gpus": 8,
        "labels": {"owner": "ann"},
        **{"slowdown": 1.25, "verdict": "ok", "discrepancy": 0.01, "is_diagnosed": True},
        **{"sparkline": [1.25], "onset_bin": 0, "num_causes": 2, "num_culprits": 1},
        "causes": [
            {"cause": "slow-worker", "cost": 0.1, "confidence": 0.9},
            {"cause": "sequence-imbalance", "cost": 0.1, "confidence": 0.9},
        ],
        "culprits": [
            {"dp_rank": 1, "stage": 1, "host": "host-b", "rank": None, "local_rank": None}
            | {"ranks": None, "num_workers": None}
        ],
        **{"persistence": "chronic", "since_step": 4},
        "since_at": "2026-09-21T14:13:20Z",
        "lost_gpu_hours_per_day": pytest.approx(8 * 24 * 0.2),  # 1 - 1 / 1.25 of 8 GPUs
        "last_step": 5,
        "last_data_at": "2026-09-21T14:13:20Z",
        **{"silent_ranks": [], "num_silent_ranks": 0, "num_silent_workers": 0},
        **dict.fromkeys(("silence", "not_analysed", "framework", "lasted_s", "observation")),
        "recent_steps": {"first_step": 4, "last_step": 5, "num_steps": 2, "is_open": False},
        "latest_window": "1-4",
    }


async def test_a_job_without_a_cause_shows_its_largest_fact(api):
    facts = [msgspec.convert(idle(share), ObservationRecord) for share in (0.031, 0.054)]
    await add(api, "idle", SavedWindow(slowdown=1.0, observations=tuple(facts)))
    await add(api, "calm", SavedWindow(slowdown=1.0, observations=facts[:0]))
    shown = {line["job_id"]: line["observation"] for line in (await ask(api))["items"]}
    assert shown == {"idle": idle(0.054), "calm": None}


async def test_onset_is_marked_in_the_sparkline(api):
    await add(api, "slow", SavedWindow(slowdown=1.0, first_step=2))
    await add(api, "slow", SavedWindow(slowdown=None, first_step=4))
    await add(api, "slow", SavedWindow(findings=[finding(onset_step=7)], first_step=6))
    [line] = (await ask(api))["items"]
    assert line["sparkline"] == [1.0, None, 1.25]
    assert line["onset_bin"] == 2


async def test_stalled_job_loses_all_gpus_and_has_no_culprit(api):
    await add(api, "dead", SavedWindow(findings=[finding()]), gpus=8)
    silence(api, "dead", stalled_since_s=NOW_S - 600)
    found = await ask(api)
    [line] = found["items"]
    assert (line["state"], line["lost_gpu_hours_per_day"]) == ("stalled", 8 * 24)
    assert (line["causes"], line["is_diagnosed"]) == ([], False)
    assert (line["since_step"], line["since_at"]) == (5, "2026-09-21T14:03:20Z")
    assert line["silence"].startswith("no data for")
    assert found["summary"]["lost_per_hour"] == found["summary"]["lost_per_hour_stalled"] == 8
    costs = "1 of 1 job is stalled. It costs about 190 GPU-hours a day."
    assert found["summary"]["sentence"] == costs
    # One window of today, and ten minutes without data.
    assert found["summary"]["gpu_hours_today"] == pytest.approx(2.6 * 4 / 3600)
    assert found["summary"]["gpu_hours_lost_today"] == pytest.approx(0.1)
    assert found["summary"]["gpu_hours_stalled_today"] == pytest.approx(8 / 6)
    day = (await api.client.get("/api/v1/fleet/charts/planned?days=1")).json()["data"]
    assert day[1]["y"] == [pytest.approx(0.1)]  # equals the summary


async def test_loss_of_a_stall_counts_from_midnight(api):
    await add(api, "dead", gpus=6)
    silence(api, "dead", stalled_since_s=NOW_S - 86_400)
    since_midnight_h = (NOW_S % 86_400) / 3600
    summary = (await ask(api))["summary"]
    assert summary["gpu_hours_stalled_today"] == pytest.approx(6 * since_midnight_h)
    assert summary["gpu_hours_lost_today"] == 0


async def test_a_silent_jobs_loss_is_not_measured(api):
    await add(api, "quiet", SavedWindow())
    silence(api, "quiet", silent_ranks=tuple(range(6)), silent_since_s=NOW_S - 60)
    found = await ask(api)
    [line] = found["items"]
    assert (line["state"], line["lost_gpu_hours_per_day"]) == ("silent", None)
    assert (line["silent_ranks"], line["num_silent_ranks"]) == ([0, 1, 2, 3], 6)
    assert line["silence"] == "6 ranks silent"
    assert line["slowdown"] == 1.25  # the last known figures
    assert found["summary"]["gpus_measured"] == 0


async def test_figures_of_low_fidelity_are_withheld(api):
    await add(api, "odd", SavedWindow(findings=None, verdict="low"))
    found = await ask(api)
    [line] = found["items"]
    assert (line["state"], line["verdict"]) == ("low-fidelity", "low")
    assert (line["slowdown"], line["lost_gpu_hours_per_day"]) == (None, None)
    assert (line["is_diagnosed"], line["discrepancy"]) == (False, 0.01)
    assert found["summary"]["gpu_hours_today"] == 0


async def test_a_finished_job_loses_nothing_now(api):
    await add(api, "done", SavedWindow(findings=[finding()]))
    await api.client.post("/api/v1/jobs/done/end")
    found = await ask(api)
    [line] = found["items"]
    assert (line["state"], line["lost_gpu_hours_per_day"]) == ("finished", None)
    assert line["causes"][0]["cause"] == "slow-worker"
    summary = found["summary"]
    assert (summary["jobs"], summary["running"], summary["gpus"]) == (1, 0, 0)


async def three_jobs(api):
    """Jobs that lose 16, 9.6 and 0 GPU-hours a day, and one without figures."""
    await add(api, "a-small", SavedWindow(slowdown=1.2, findings=[LENGTHS]))
    await add(api, "b-large", SavedWindow(slowdown=1.25, findings=[finding()]), gpus=2)
    await add(api, "c-well", SavedWindow(slowdown=1.0, findings=[]), gpus=16, framework="NeMo")
    await api.register("d-new", labels={"owner": "Carla"})


async def test_jobs_are_sorted_by_loss_with_unknown_last(api):
    await three_jobs(api)
    assert await names(api) == ["a-small", "b-large", "c-well", "d-new"]
    assert await names(api, dir="asc") == ["c-well", "b-large", "a-small", "d-new"]


async def test_stalled_and_silent_jobs_come_before_those_that_lose_more(api):
    await three_jobs(api)
    await add(api, "e-quiet", SavedWindow())
    await add(api, "f-dead", SavedWindow(), gpus=1)
    silence(api, "e-quiet", silent_ranks=(1,), silent_since_s=NOW_S)
    silence(api, "f-dead", stalled_since_s=NOW_S - 600)
    assert await names(api) == ["f-dead", "e-quiet", "a-small", "b-large", "c-well", "d-new"]
    first = await ask(api, limit=2)
    assert await names(api, limit=2, cursor=first["next_cursor"]) == ["a-small", "b-large"]
    assert first["summary"]["sentence"].startswith("3 of 6 jobs are losing time, 1 of them stalled")
    assert first["summary"]["sub"].endswith("1 job has silent ranks: its loss is not measured.")


async def test_every_sort_order_works(api):
    await three_jobs(api)
    expected = {
        "slowdown": "bacd",
        "gpus": "cadb",
        "name": "abcd",
        "since": "badc",
        "state": "abdc",
    }
    for order, first_letters in expected.items():
        found = await names(api, order=order)
        assert "".join(job_id[0] for job_id in found) == first_letters, order


async def test_pages_have_every_job_once_in_any_order(api):
    await three_jobs(api)
    for order in ("lost", "slowdown", "gpus", "name", "since", "state"):
        for direction in ("asc", "desc"):
            query = {"order": order, "dir": direction}
            whole, found = await names(api, **query), []
            cursor: dict[str, str] = {}
            while True:
                page = await ask(api, limit=1, **query, **cursor)
                found += [item["job_id"] for item in page["items"]]
                if page["next_cursor"] is None:
                    break
                cursor = {"cursor": page["next_cursor"]}
            assert found == whole, query
            assert page["total"] == 4


async def test_page_continues_at_the_cursors_position(api):
    await three_jobs(api)
    first = await ask(api, limit=1)
    silence(api, "a-small", silent_ranks=(1,), silent_since_s=NOW_S)  # now second to last
    assert await names(api, limit=1, cursor=first["next_cursor"]) == ["b-large"]


async def test_a_cursor_of_another_order_is_refused(api):
    await three_jobs(api)
    cursor = (await ask(api, limit=1))["next_cursor"]
    for query in ({"order": "name"}, {"dir": "asc"}, {"cursor": "WyJsb3N0Il0"}):
        answer = await api.client.get(PATH, params={"cursor": cursor} | query)
        assert answer.status_code == 422


LOOKED_FOR = [
    ({"q": "B-LAR"}, ["b-large"]),
    ({"q": "carla"}, ["d-new"]),
    ({"q": "nemo"}, ["c-well"]),
    ({"q": "sequence im"}, ["a-small"]),
    ({"q": "host-b"}, ["b-large"]),
    ({"q": "rack-7"}, ["c-well"]),
    ({"q": "ack-7"}, []),
    ({"q": " "}, ["a-small", "b-large", "c-well", "d-new"]),
    ({"state": "straggling"}, ["a-small", "b-large"]),
    ({"cause": "slow-worker"}, ["b-large"]),
    ({"cause": "slow-worker", "state": "healthy"}, []),
    ({"cause": "slow-worker", "q": "a-small"}, []),
]


async def test_search_and_filters(api):
    await three_jobs(api)
    with api.store.write() as conn:
        hosts.add_to_run(conn, "default/c-well", 1, ["rack-7-node-1"])
    for query, expected in LOOKED_FOR:
        found = await ask(api, **query)
        assert [item["job_id"] for item in found["items"]] == expected, query
        assert found["total"] == len(expected)
        assert found["summary"]["jobs"] == 4  # of all jobs, regardless of the filter


async def test_summary_is_the_sum_of_the_jobs(api):
    await three_jobs(api)
    summary = (await ask(api))["summary"]
    assert summary["by_state"] == {"straggling": 2, "healthy": 1, "not-analysed": 1}
    assert summary["by_cause"] == {"sequence-imbalance": 1, "slow-worker": 1}
    assert (summary["gpus"], summary["gpus_measured"]) == (4 + 2 + 16 + 4, 4 + 2 + 16)
    per_hour = 4 * (1 - 1 / 1.2) + 2 * (1 - 1 / 1.25)
    assert summary["lost_per_hour"] == pytest.approx(per_hour)
    assert summary["sentence"].startswith("2 of 4 jobs are losing time. Together they cost ")
    assert summary["sub"].startswith("a-small loses most: sequence lengths")
