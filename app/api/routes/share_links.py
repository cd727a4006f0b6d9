"""Share links: a frozen snapshot of a job's page, shown to people who have the link.

The API makes, lists and revokes links; `GET /share/{token}` shows one. Who may open a link is the
operator's decision: `PACELINE_SHARE_LINKS`.
"""

import base64
import hashlib
from datetime import UTC, datetime
from html import escape
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from app import formatting
from app.api.http import fields
from app.api.http.auth import client_address
from app.api.http.principal import SHARE_PATH
from app.api.pages import PLOTLY_PATH
from app.api.routes.audit import write_audit
from app.api.routes.dependencies import ApiRouter, CallerDep, JobKey, PageOut, ServiceDep, refusals
from app.api.routes.windows.windows import RANGE_SEPARATOR, RECENT, shown_result
from app.api.service.annotation_places import placed_annotations, with_annotations
from app.api.service.job_state import state_of_window
from app.api.service.replays import epoch_of
from app.api.service.service import Service
from app.charts.report.html import SERVED_DRAW_SCRIPT, served_report
from app.errors import Conflict, Forbidden, PacelineError, ShareLinkNotFound, Unauthorised
from app.formatting import Hosts
from app.result.window_result import WindowResult
from app.store import hosts
from app.store.credentials import share_links
from app.store.credentials.share_links import NewShareLink, ShareLink
from app.trace.job import JOB_PATTERN, job_key, job_of

_FONT_PATH = "/static/fonts/inter-latin.woff2"


def _script_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


# Nothing but its own data, the service's script and styles: no request can leave the page.
_CSP = (
    f"default-src 'none'; script-src 'self' {_script_hash(SERVED_DRAW_SCRIPT)}; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
SNAPSHOT_HEADERS = {
    "content-security-policy": _CSP,
    "referrer-policy": "no-referrer",
    "x-robots-tag": "noindex, nofollow, noarchive",
    "cache-control": "private, no-store",
}


def snapshot_page(
    job_id: str, result: WindowResult, known_hosts: Hosts, *, now_s: float, alert_slowdown: float
) -> bytes:
    """The report of a result as it is now, as one page; `job_id` is without its project.

    It holds its data. Its script, Plotly, comes from this service, so that each snapshot takes
    kilobytes instead of megabytes.

    Raises:
        Conflict: the result has no figures yet.
    """
    steps = result.steps
    if not steps or result.slowdown is None:
        raise Conflict("these steps have no figures yet: share the job once a step is analysed")
    at = datetime.fromtimestamp(now_s, UTC)
    page = served_report(
        result,
        state=state_of_window(result.slowdown, result.fidelity.verdict, alert_slowdown),
        hosts=known_hosts,
        notice=f"Snapshot of {formatting.bidi_isolated(job_id)} at {at:%Y-%m-%d %H:%M} UTC, "
        f"steps {formatting.count(steps[0])} to {formatting.count(steps[-1])}",
        script_address=PLOTLY_PATH,
        font_address=_FONT_PATH,
    )
    return page.encode(errors="replace")


router = ApiRouter("share links")
pages_router = APIRouter(include_in_schema=False)

MAX_DAYS = 90.0
_DAY_S = 86_400.0
ShareState = Literal["active", "expired", "revoked"]


class ShareIn(fields.RequestModel):
    """Which steps to share, and for how long."""

    window: Annotated[str, Field(pattern=fields.RANGE_PATTERN)] = Field(
        RECENT, description="Window id, or a range of two ids, or `latest`, or `recent`."
    )
    steps: Annotated[str, Field(max_length=1000)] | None = Field(
        None, description="Only these steps of a closed window, as numbers and ranges."
    )
    since_step: int | None = Field(
        None, ge=0, le=2**53, description="Leave out the steps before this one."
    )
    expires_days: float = Field(
        7.0, gt=0, le=MAX_DAYS, allow_inf_nan=False, description="Days until the link expires."
    )


class ShareOut(fields.ResponseModel):
    """A share link without its token, which is not stored."""

    share_id: str
    job_id: fields.JobName
    window: str = Field(validation_alias="window_id")
    first_step: int
    last_step: int
    author: str = Field(description="Name of the token that made it.")
    created_at: fields.UnixTime = Field(validation_alias="created_s")
    expires_at: fields.UnixTime = Field(validation_alias="expires_s")
    revoked_at: fields.UnixTime | None = Field(validation_alias="revoked_s")
    state: ShareState
    size_bytes: int = Field(description="Size of the snapshot.")


def _state(link: ShareLink, now_s: float) -> ShareState:
    if link.revoked_s:
        return "revoked"
    return "active" if link.is_good(now_s) else "expired"


class CreatedShareOut(ShareOut):
    """The new link; its address is shown only once."""

    path: str = Field(description="The link, on this service.", examples=["/share/x7Kq2m..."])
    url: str = Field(description="The whole link, at the address of the pages.")
    opens_for: Literal["signed-in", "anyone"] = Field(
        description="Who can open it: who is signed in to this project, or anyone with the link."
    )


class SharesOut(PageOut[ShareOut]):
    """A page of share links, newest first."""


ShareId = Annotated[str, fields.hex_id("link")]


@router.post(
    "/jobs/{job_id}/shares",
    summary="Share a snapshot of a job's page",
    status_code=201,
    responses=refusals(409),
)
def create_share(
    job_id: JobKey, given: ShareIn, service: ServiceDep, caller: CallerDep
) -> CreatedShareOut:
    """The link shows the figures of these steps as they are now, until it expires or is revoked.

    It shows nothing else of the service. A project has at most 200 links.
    """
    audience = service.share_audience
    if audience == "off":
        raise Forbidden("share links are switched off: see PACELINE_SHARE_LINKS")
    result, known_hosts = _shared(service, job_id, given)
    now_s = service.now_s()
    name, alert_slowdown = job_of(job_id), service.alert_slowdown
    wanted = NewShareLink(
        project=caller.project,
        job_id=job_id,
        author=caller.name,
        expires_s=now_s + given.expires_days * _DAY_S,
        window_id=str(result.window.id),
        first_step=result.steps[0],
        last_step=result.steps[-1],
        page=snapshot_page(name, result, known_hosts, now_s=now_s, alert_slowdown=alert_slowdown),
    )
    with service.store.write() as conn:
        made, token = share_links.create(conn, wanted, now_s=now_s)
        detail = {
            "job": name,
            "window": made.window_id,
            "steps": f"{made.first_step}-{made.last_step}",
            "expires_at": fields.timestamp(made.expires_s).isoformat(),
        }
        write_audit(conn, caller, "share.create", made.share_id, now_s=now_s, **detail)
    path = f"{SHARE_PATH}{token}"
    return CreatedShareOut.of_record(
        made,
        state=_state(made, now_s),
        path=path,
        url=service.public_settings.pages_url.rstrip("/") + path,
        opens_for=audience,
    )


def _shared(service: Service, job_id: str, given: ShareIn) -> tuple[WindowResult, Hosts]:
    """The result of these steps, with annotations, and the hosts of its run."""
    is_one = RANGE_SEPARATOR not in given.window and given.since_step is None
    is_one = is_one and (given.window != RECENT or given.steps is not None)
    result = shown_result(
        service, job_id, given.window, given.steps, per_step=is_one, since_step=given.since_step
    )
    with service.store.read() as conn:
        known_hosts = hosts.load(conn, job_id, epoch_of(result))
        return with_annotations(result, placed_annotations(conn, job_id)), known_hosts


@router.get("/shares", summary="List share links")
def list_shares(
    service: ServiceDep,
    caller: CallerDep,
    job: Annotated[
        str | None, Query(pattern=JOB_PATTERN, description="Only links to this job.")
    ] = None,
    cursor: fields.Cursor = None,
    limit: fields.Limit = 100,
) -> SharesOut:
    """All links of the project, newest first, with expired and revoked ones."""
    job_id = None if job is None else job_key(caller.project, job)
    with service.store.read() as conn:
        links, next_cursor = share_links.page(
            conn, caller.project, job_id=job_id, cursor=cursor, limit=limit
        )
    now_s = service.now_s()
    items = [ShareOut.of_record(link, state=_state(link, now_s)) for link in links]
    return SharesOut(items=items, next_cursor=next_cursor)


@router.delete("/shares/{share_id}", summary="Revoke a share link", status_code=204)
def revoke_share(share_id: ShareId, service: ServiceDep, caller: CallerDep) -> None:
    """The link shows nothing from now on, and its snapshot is deleted. Idempotent."""
    now_s = service.now_s()
    with service.store.write() as conn:
        job = job_of(share_links.get(conn, caller.project, share_id).job_id)
        if share_links.revoke(conn, caller.project, share_id, now_s=now_s):
            write_audit(conn, caller, "share.revoke", share_id, now_s=now_s, job=job)


@pages_router.get(f"{SHARE_PATH}{{token}}")
async def show_snapshot(token: str, request: Request, service: ServiceDep) -> Response:
    """The snapshot of a link, for a browser."""
    try:
        page = await _admitted_page(token, request, service)
    except (Forbidden, ShareLinkNotFound, Unauthorised) as error:
        return HTMLResponse(_refusal(error), error.status, headers=SNAPSHOT_HEADERS)
    return HTMLResponse(page, headers=SNAPSHOT_HEADERS)


async def _admitted_page(token: str, request: Request, service: Service) -> bytes:
    """The page, if the caller may see it.

    A good link is never delayed: many people may share one address.
    """
    audience = service.share_audience
    caller = None
    if audience == "signed-in":
        caller = await service.auth.caller(request.scope)
        caller.check("read")  # an ingest token lies on every worker
    try:
        if audience == "off":
            raise ShareLinkNotFound
        link, page = await run_in_threadpool(_read_page, service, token)
        if caller is not None and link.project != caller.project:
            raise ShareLinkNotFound
    except ShareLinkNotFound:
        service.share_failures.add(client_address(request.scope))
        raise
    return page


def _read_page(service: Service, token: str) -> tuple[ShareLink, bytes]:
    with service.store.read() as conn:
        return share_links.find_page(conn, token, now_s=service.now_s())


_REFUSAL = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="robots" content="noindex">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title} · Paceline</title>
<style>body {{ max-width: 640px; margin: 48px auto; padding: 0 16px;
font: 14px/1.5 system-ui, sans-serif }}</style></head>
<body><h1>{title}</h1><p>{text}</p><p><a href="/">To Paceline</a></p></body></html>
"""


def _refusal(error: PacelineError) -> str:
    if isinstance(error, Unauthorised):
        title = "Sign in first"
        text = "This link opens for people who are signed in. Sign in, then open it again."
    elif isinstance(error, Forbidden):
        title = "Not with this token"
        text = "This link opens with a token that may read. Sign in with one, then open it again."
    else:
        title = "Nothing is shared here"
        text = "This link has expired, was revoked, or is not complete. Ask for a new one."
    return _REFUSAL.format(title=escape(title), text=escape(text))
