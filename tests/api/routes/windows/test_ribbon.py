"""The ribbon of a job: bins, gaps and events."""

import dataclasses

import pytest

from app.alerts.alert import AlertEvent, AlertEventKind, Detail
from app.api.routes.windows.ribbon import ribbon_gaps
from app.api.routes.windows.ribbon_events import MAX_BINS, ribbon_bins
from app.ingest.assembly.steps import LEFT_OUT_REASONS
from app.store import windows as stored_windows
from app.store.alerting import alerts
from app.store.windows import StepRow, StepTimeSums, WindowSummary
from tests.api import recorded
from tests.api.routes.windows.test_windows_range import a_window
from tests.api.server import KEY, NOW_S, window_record, with_result
from tests.store.factories import event
from tests.store.findings import finding

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b"


async def seen_by(api):
    answer = await api.client.get(f"{PATH}/ribbon")
    assert answer.status_code == 200, answer.text
    return answer.json()


def found(onset_step, cause="slow-worker", sentence="dp 1, stage 1 is 1.6x slower"):
    return finding(cause, culprits=[], onset_step=onset_step, cost=0.2, sentence=sentence)


def alert(kind: AlertEventKind, window_id: str) -> AlertEvent:
    detail = Detail(slowdown=1.3, since_step=2, window_id=window_id)
    return event(KEY, kind=kind, at_s=NOW_S + 5, detail=detail)


async def test_a_bin_is_a_window_with_its_figures(api):
    await api.register()
    for first_step, slowdown in ((0, 1.25), (2, None)):
        api.save_window(window_record(first_step, slowdown=slowdown))
    shown = await seen_by(api)
    first, second = shown["bins"]
    assert first == {
        **{"from": "1-0", "to": "1-0", "first_step": 0, "last_step": 1, "num_steps": 2, "epoch": 1},
        **{"slowdown": 1.25, "verdict": "ok", "is_open": False, "first_at": None, "last_at": None},
    }
    assert (second["from"], second["first_step"], second["num_steps"]) == ("1-2", 2, 0)
    assert (second["slowdown"], second["verdict"]) == (None, None)
    assert (shown["older"], shown["gaps"], shown["since_onset"]) == (0, [], None)


async def test_a_job_without_windows_has_an_empty_ribbon(api):
    await api.register()
    assert (await seen_by(api))["bins"] == []
    answer = await api.client.get("/api/v1/jobs/no-such-job/ribbon")
    assert answer.status_code == 404


async def test_missing_steps_are_a_gap(api):
    await api.register()
    for first_step in (0, 2, 10):
        api.save_window(window_record(first_step))
    assert (await seen_by(api))["gaps"] == [{"after_bin": 1, "num_steps": 6}]


async def test_windows_since_the_onset_are_given(api):
    await api.register()
    for first_step in (0, 2, 4, 6):
        api.save_window(with_result(window_record(first_step), findings=[found(3)]))
    shown = await seen_by(api)
    assert shown["since_onset"] == {"from": "1-2", "to": "1-6", "step": 3, "at": None}
    [onset] = shown["events"]
    assert (onset["kind"], onset["step"], onset["bin"]) == ("onset", 3, 1)
    assert onset["text"] == "slow since 3"
    assert onset["detail"] == "dp 1, stage 1 is 1.6\u00d7 slower"


async def test_figures_since_the_onset_leave_out_the_steps_before(api):
    await api.register()
    recorded.save(api, *(a_window(first, 10.0 + first) for first in range(0, 6, 2)))
    whole = (await api.client.get(f"{PATH}/windows/1-2..1-4")).json()
    since = (await api.client.get(f"{PATH}/windows/1-2..1-4", params={"since_step": 3})).json()
    assert since["steps"] == whole["steps"][1:] == [3, 4, 5]
    times = {
        name: sum(each[1:]) for name, each in whole["step_time_s"].items() if name != "between"
    }
    assert since["slowdown"] == pytest.approx(times["simulated"] / times["ideal"])
    one = (await api.client.get(f"{PATH}/windows/1-2", params={"since_step": 3})).json()
    assert one["steps"] == [3]
    assert one["window"]["id"] == "1-2"
    head = await api.client.get(f"{PATH}/headline", params={"window": "1-2", "since_step": 3})
    assert head.status_code == 200


async def test_onset_before_the_ribbon_starts_at_the_oldest_window(api):
    await api.register()
    for first_step in (10, 12):
        api.save_window(with_result(window_record(first_step), findings=[found(3)]))
    shown = await seen_by(api)
    assert shown["since_onset"] == {"from": "1-10", "to": "1-12", "step": 3, "at": None}
    assert shown["events"] == []


async def test_events_are_at_their_steps(api):
    await api.register()
    api.save_window(window_record(0))
    api.save_window(window_record(2))
    await api.register(run_key="run-2")
    api.save_window(window_record(0, epoch=2))
    lost = [StepRow(2, n, None, None, None, None, "2-0", "rank 3 is gone") for n in (0, 1)]
    with api.store.write() as conn:
        alerts.add_event(conn, alert("firing", "1-2"))
        alerts.add_event(conn, alert("acknowledged", "1-2"))
        alerts.add_event(conn, alert("resolved", "1-99"))
        stored_windows.save_steps(conn, KEY, lost)
    seen = [(e["kind"], e["epoch"], e["step"], e["bin"]) for e in (await seen_by(api))["events"]]
    assert seen == [("alert-firing", 1, 2, 1), ("restart", 2, 0, 2), ("skipped", 2, 0, 2)]
    # An evaluation is no incident.
    evaluated = f"{LEFT_OUT_REASONS['eval']}; rank 3 did not report the step in time"
    with api.store.write() as conn:
        more = [StepRow(2, n, None, None, None, None, "2-0", evaluated) for n in range(2, 9)]
        stored_windows.save_steps(conn, KEY, more)
    skipped = (await seen_by(api))["events"][-1]
    assert (skipped["text"], skipped["detail"]) == (
        "2 steps skipped",
        "2 steps skipped: rank 3 is gone",
    )


async def test_alerts_of_one_window_are_one_event(api):
    await api.register()
    api.save_window(window_record(0))
    api.save_window(window_record(2))
    with api.store.write() as conn:
        for number in range(3):
            later = dataclasses.replace(alert("firing", "1-2"), at_s=NOW_S + number)
            alerts.add_event(conn, dataclasses.replace(later, sentence=f"Alert {number}."))
        alerts.add_event(conn, alert("resolved", "1-2"))
    found = [(e["kind"], e["text"], e["detail"]) for e in (await seen_by(api))["events"]]
    assert found == [
        ("alert-firing", "3 alerts", "Alert 0."),
        ("alert-resolved", "alert resolved", "It is slow: 1.42."),
    ]


def change(step, ratio, what="compute", culprits=({"dp_rank": 1, "stage": 1},)):
    times = {"until_step": step, "before_s": 1.0, "after_s": ratio}
    return {"step": step, "ratio": ratio, "what": what, "culprits": list(culprits)} | times


async def test_change_seen_by_several_windows_is_one_event(api):
    await api.register()
    api.save_window(window_record(0))
    seen = [
        change(2, 1.6),  # the worker ...
        change(3, 1.4, "step-time", ()),  # ... and the step that waits for it
        change(5, 0.7),
    ]
    last = with_result(window_record(2), findings=[found(2)], changes=seen)
    api.save_window(last)
    api.save_window(with_result(window_record(4), findings=[found(2)], changes=seen))
    events = (await seen_by(api))["events"]
    assert [(e["kind"], e["step"], e["text"]) for e in events] == [
        ("onset", 2, "slow since 2"),
        ("recovery", 5, "dp 1, stage 1 recovered"),
    ]


async def test_events_are_drawn_in_charts_over_time(api):
    await api.register()
    for first_step in (0, 2, 4):
        api.save_window(with_result(window_record(first_step), findings=[found(3)]))
    for chart in ("charts/steps", "windows/1-4/charts/worker-steps", "windows/1-4/charts/dp-steps"):
        figure = (await api.client.get(f"{PATH}/{chart}")).json()
        lines = [each for each in figure["layout"]["shapes"] if each["type"] == "line"]
        assert [each["x0"] for each in lines] == [2.5]


def summary(first_step, *, epoch=1, slowdown=1.2, num_steps=8, verdict="ok"):
    return WindowSummary(
        window_id=f"{epoch}-{first_step}",
        epoch=epoch,
        first_step=first_step,
        last_step=first_step + 7,
        revision=1,
        state="complete",
        num_steps=num_steps,
        slowdown=slowdown,
        verdict=verdict,
        updated_s=NOW_S,
    )


def test_bins_are_limited_and_have_every_window_once():
    windows = [summary(8 * n) for n in range(1999)]
    made = ribbon_bins(windows, {each.window_id: StepTimeSums(1.2, 1.0) for each in windows})
    assert len(made) <= MAX_BINS
    assert [each for bin_ in made for each in bin_.windows] == windows
    assert made[0].slowdown == pytest.approx(1.2)


def test_slowdown_of_a_bin_is_over_all_its_steps():
    windows = [summary(8 * n, slowdown=1.2) for n in range(2 * MAX_BINS)]
    times = {each.window_id: StepTimeSums(12.0, 10.0) for each in windows}
    times["1-8"] = StepTimeSums(30.0, 20.0)
    # 12 and 30 s that would be 10 and 20 s: 1.4, where the mean of both is 1.35.
    assert ribbon_bins(windows, times)[0].slowdown == pytest.approx(1.4)


def test_a_bin_is_of_one_run_and_does_not_span_a_gap():
    windows = [summary(8 * n, epoch=1 + n // 300) for n in range(600)]
    windows += [summary(8 * n, epoch=3) for n in range(1000, 1300)]
    for bin_ in ribbon_bins(windows, {}):
        assert len({each.epoch for each in bin_.windows}) == 1
    apart = [*(summary(8 * n) for n in range(250)), *(summary(8 * n) for n in range(260, 510))]
    made = ribbon_bins(apart, {})
    [gap] = ribbon_gaps(made)
    assert (made[gap.after_bin].last.first_step, gap.num_steps) == (8 * 249, 80)


def test_newest_bins_of_a_fragmented_run_are_kept():
    windows = [summary(100 * n) for n in range(1000)]
    made = ribbon_bins(windows, {})
    assert len(made) <= MAX_BINS
    assert made[-1].last == windows[-1]
    restarted = [summary(0, epoch=n) for n in range(1, 400)]
    assert [each.first for each in ribbon_bins(restarted, {})] == restarted[-MAX_BINS:]


def test_verdict_of_a_bin_is_that_of_its_least_reliable_window():
    windows = [summary(8 * n, verdict="low" if n == 1 else "ok") for n in range(2 * MAX_BINS)]
    made = ribbon_bins(windows, {})
    assert [each.verdict for each in made[:2]] == ["low", "ok"]
    unknown = [summary(8 * n, slowdown=None) for n in range(2 * MAX_BINS)]
    assert (ribbon_bins(unknown, {})[0].verdict, ribbon_bins(unknown, {})[0].slowdown) == (
        None,
        None,
    )
