"""Write down what a window told us: result, steps, raw operations, alert and its delivery."""

from dataclasses import dataclass
from urllib.parse import quote

import numpy as np

from app.alerts.alert import Alert, AlertState, Transition, WorstWorker
from app.alerts.formats import standard
from app.alerts.wording import sentence
from app.consumer.workplace import Workplace
from app.ingest.assembler import Change
from app.ingest.queue import Message
from app.monitor import Observation
from app.store import alerts, outbox, steps, windows
from app.store.alerts import AlertEvent
from app.store.engine import Connection
from app.store.steps import StepRow
from app.store.windows import WindowRecord
from app.trace.job import Job
from app.trace.names import plain

Hosts = dict[tuple[int, int], str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One revision of one window, and what it told us."""

    job_id: str
    change: Change
    observation: Observation


@dataclass(frozen=True, slots=True)
class News:
    """An alert that begins or ceases to fire, with what its message needs."""

    job_id: str
    job: Job
    transition: Transition
    worst_worker: WorstWorker | None


def save_window(conn: Connection, work: Workplace, outcome: Outcome) -> Message:
    """Save one revision in the open transaction; returns what to announce once it is committed."""
    job_id, window = outcome.job_id, outcome.change.window
    windows.save(conn, job_id, _window_record(outcome, work.unix_time()))
    steps.save(conn, job_id, _step_rows(outcome))
    return {
        "event": "window",
        "job_id": job_id,
        "window": window.id,
        "revision": window.revision,
        "state": window.state,
        "slowdown": outcome.observation.result["slowdown"],
    }


def save_news(conn: Connection, work: Workplace, news: News) -> Message:
    """Save a transition, and whom to tell, in the open transaction; returns what to announce."""
    now_s, transition = work.unix_time(), news.transition
    alert = Alert(
        news.job_id,
        news.job.name,
        transition,
        now_s,
        news.worst_worker,
        _page(work.public_url, news.job_id),
    )
    event = AlertEvent(
        job_id=news.job_id,
        rule=work.rule.name,
        kind=transition.kind,
        at_s=now_s,
        window_id=transition.window_id,
        slowdown=transition.slowdown,
        threshold=transition.threshold,
        since_step=transition.since_step,
        sentence=sentence(alert),
    )
    event_id = alerts.add_event(conn, event)
    if work.webhook_endpoint is not None:
        outbox.add(conn, event_id, work.webhook_endpoint, standard.body(alert), now_s=now_s)
    return {"event": "alert", "job_id": news.job_id, "kind": transition.kind}


def save_alert_state(conn: Connection, work: Workplace, job_id: str, state: AlertState) -> None:
    """Save where the rule stands on the job."""
    alerts.save_state(conn, job_id, work.rule.name, state)


def worst_worker(observation: Observation, hosts: Hosts) -> WorstWorker | None:
    """The worker that alone would slow the job down most; None where none was measured."""
    if observation.report is None:
        return None
    slowdown = observation.report.worker_slowdown
    dp_rank, stage = (int(index) for index in np.unravel_index(slowdown.argmax(), slowdown.shape))
    return WorstWorker(dp_rank, stage, hosts.get((dp_rank, stage)), float(slowdown[dp_rank, stage]))


def _page(public_url: str | None, job_id: str) -> str | None:
    return f"{public_url.rstrip('/')}/jobs/{quote(plain(job_id), safe='')}" if public_url else None


def _window_record(outcome: Outcome, now_s: float) -> WindowRecord:
    window, report = outcome.change.window, outcome.observation.report
    result = dict(outcome.observation.result)
    settled = [*window.steps, *(skipped.step for skipped in window.skipped)]
    return WindowRecord(
        epoch=window.epoch,
        first_step=window.first_step,
        last_step=max(settled),
        revision=window.revision,
        state=window.state,
        num_steps=len(result["steps"]),
        num_ops=window.trace.num_ops,
        slowdown=None if report is None else report.slowdown,
        verdict=outcome.observation.verdict,
        per_step=result.pop("per_step"),
        result=result,
        trace=outcome.change.ops,
        updated_s=now_s,
    )


def _step_rows(outcome: Outcome) -> list[StepRow]:
    window, result = outcome.change.window, outcome.observation.result
    times, slowdowns = result["step_time_s"], result["step_slowdown"]
    figures = zip(
        result["steps"], times["recorded"], times["simulated"], times["ideal"], slowdowns,
        strict=False,
    )  # fmt: skip
    measured = {
        step: StepRow(window.epoch, step, recorded, simulated, ideal, slowdown, window.id)
        for step, recorded, simulated, ideal, slowdown in figures
    }
    skipped = {
        skip["step"]: StepRow(
            window.epoch, skip["step"], None, None, None, None, window.id, skip["reason"]
        )
        for skip in result["skipped_steps"]
    }
    return list((measured | skipped).values())
