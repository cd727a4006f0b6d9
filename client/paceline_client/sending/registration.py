"""Registers a run of a job, and reports its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from .contact import advice_on
from .time_limit import within
from .transport import TIMEOUT_S, Answer, Transport, Unreachable, job_path

END_WITHIN_S = 5.0
BEFORE_END = 0.95  # of the timeout, to have the reason in time where a request takes all of it

log = logging.getLogger("paceline_client")


class Refused(Exception):
    """The server refused the request."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.detail)
        self.answer = answer


class Registered(NamedTuple):
    """A registered run: its epoch, and the extensions of format 1 that the server accepts.

    `is_new` tells that this request created the run, so that nothing of it was sent before.
    """

    epoch: int
    accepts: frozenset[str]
    answer: Mapping[str, Any]
    is_new: bool = False


def register(
    url: str,
    token: str,
    job: str,
    *,
    dp_size: int,
    pp_size: int,
    run_key: str,
    name: str | None = None,
    tp_size: int = 1,
    vpp_size: int = 1,
    dsp_size: int = 1,
    ep_size: int = 1,
    gpus: int | None = None,
    framework: str | None = None,
    labels: Mapping[str, str] | None = None,
    op_types: Sequence[Mapping[str, str]] | None = None,
) -> int:
    """Epoch of the run that `run_key` names; the same key always gets the same epoch.

    `op_types` describes operation types beyond the built-in ones, for example
    {"name": "moe-all-to-all", "kind": "collective", "axis": "ep"}.

    Raises:
        Unreachable: no answer.
        Refused: the server did not return an epoch.
    """
    sizes = Sizes(dp_size, pp_size, tp_size, vpp_size, dsp_size, ep_size)
    request = registration(sizes, run_key, name, gpus, framework, labels, op_types)
    return register_with(Transport(url, token), job, request).epoch


def end_job(url: str, token: str, job: str, timeout_s: float = END_WITHIN_S) -> bool:
    """Report that the job has ended; whether the server has noted it.

    Closing the recorders of all workers does the same: this is for scripts without a recorder, or
    for a job that is to end before its processes do. Never raises, and returns within the timeout,
    however long the server's name takes to look up: a training that is done must not fail, nor
    wait, because nobody could be told. Why is logged once.
    """
    reasons = [f"no answer within {timeout_s:g} s"]
    until_s = time.monotonic() + BEFORE_END * timeout_s
    if within(timeout_s, lambda: _end_until(until_s, url, token, job, reasons)):
        return True
    log.warning(
        "paceline: the end of job %r could not be reported: %s. It shows as stalled in a few "
        "minutes; end it on its page, or with POST /api/v1/jobs/JOB/end",
        job,
        reasons[-1],
    )
    return False


def _end_until(until_s: float, url: str, token: str, job: str, reasons: list[str]) -> bool:
    """Try to end the job; whether that was noted. Adds why not to the reasons."""
    delay_s = 0.2
    try:
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                request_end(url, token, job, timeout_s=left_s)
            except Unreachable as error:
                reasons.append(str(error))
            except Refused as refused:
                reason = str(refused)
                if not refused.answer.retryable:
                    reasons.append(f"{reason}. {advice_on(refused.answer.status)}")
                    return False
                reasons.append(reason)
            else:
                return True
            time.sleep(max(0.0, min(delay_s, until_s - time.monotonic())))
            delay_s *= 2
    except Exception as error:  # an address that is none
        reasons.append(str(error))
    return False


def request_end(url: str, token: str, job: str, *, timeout_s: float = TIMEOUT_S) -> None:
    """One request to end the job.

    Raises:
        Unreachable: no answer.
        Refused: the server refused the request.
    """
    transport = Transport(url, token, timeout_s)
    try:
        answer = transport.request("POST", job_path(job, "/end"), b"", "application/json")
    finally:
        transport.close()
    if not answer.ok or answer.json().get("job_id") is None:
        raise Refused(answer)


class Sizes:
    """Sizes of the job's parallel axes."""

    def __init__(
        self,
        dp_size: int,
        pp_size: int,
        tp_size: int = 1,
        vpp_size: int = 1,
        dsp_size: int = 1,
        ep_size: int = 1,
    ) -> None:
        self.by_name = {
            "dp_size": dp_size,
            "pp_size": pp_size,
            "tp_size": tp_size,
            "vpp_size": vpp_size,
            "dsp_size": dsp_size,
            "ep_size": ep_size,
        }


def registration(
    sizes: Sizes,
    run_key: str,
    name: str | None = None,
    gpus: int | None = None,
    framework: str | None = None,
    labels: Mapping[str, str] | None = None,
    op_types: Sequence[Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Body of the request that registers a run, without unknown fields."""
    optional: dict[str, Any] = {
        "name": name,
        "gpus": gpus,
        "framework": framework,
        "labels": labels,
        "op_types": op_types,
    }
    known = {key: value for key, value in optional.items() if value is not None}
    return {"parallelism": sizes.by_name, "run_key": run_key, **known}


def register_with(transport: Transport, job: str, request: Mapping[str, Any]) -> Registered:
    """Register the run; closes the connection afterwards.

    Raises:
        Unreachable: no answer.
        Refused: the server did not return an epoch.
    """
    try:
        answer = transport.request("PUT", job_path(job), request, "application/json")
    finally:
        transport.close()
    fields = answer.json()
    epoch, accepts = fields.get("epoch"), fields.get("accepts")
    if not answer.ok or not isinstance(epoch, int) or isinstance(epoch, bool):
        raise Refused(answer)
    named = accepts if isinstance(accepts, list) else []
    known = frozenset(name for name in named if isinstance(name, str))
    return Registered(epoch, known, fields, answer.status == HTTPStatus.CREATED)
