"""Silences and maintenance windows: matching alerts notify nobody for a while."""

import secrets
from typing import Annotated, Literal

from fastapi import Query
from pydantic import ConfigDict, Field, StringConstraints
from pydantic.config import JsonDict

from app.alerts.labels import MAX_SILENCE_DAYS, Silence, SilenceKind, all_match
from app.api.http import fields
from app.api.http.principal import Principal
from app.api.routes.audit import changed_fields, write_audit
from app.api.routes.dependencies import ApiRouter, CallerDep, PageOut, ServiceDep, refusals
from app.api.service.service import Service
from app.errors import Conflict, InvalidRequest
from app.store import jobs
from app.store.alerting import notifications, silences
from app.store.database import Connection
from app.trace.job import JOB_PATTERN, job_of, project_of

_DAY_S = 86_400.0
SILENCE_EXAMPLE: JsonDict = {
    "kind": "maintenance",
    "matchers": [{"label": "job", "pattern": "llm-*"}, {"label": "host", "pattern": "row-7-*"}],
    "starts_at": "2099-11-21T22:00:00Z",
    "ends_at": "2099-11-22T02:00:00Z",
    "comment": "new switches in row 7",
}
SilenceState = Literal["coming", "active", "ended"]


class SilenceIn(fields.RequestModel):
    """Between start and end, alerts that match all `matchers` notify nobody."""

    model_config = ConfigDict(json_schema_extra={"examples": [SILENCE_EXAMPLE]})

    kind: SilenceKind = Field(
        "silence", description="`maintenance` marks planned work; both kinds have the same effect."
    )
    matchers: Annotated[fields.Matchers, Field(min_length=1)]
    starts_at: fields.Moment | None = Field(
        None, description="Start; default, and if in the past: now."
    )
    ends_at: fields.Moment | None = Field(
        None,
        description=f"End, at most {MAX_SILENCE_DAYS:g} days after the start; may be left out "
        "where `until_end_of` is given.",
    )
    until_end_of: Annotated[str, StringConstraints(pattern=JOB_PATTERN)] | None = Field(
        None,
        description="Job whose current run ends the silence, once it ends or is restarted.",
        examples=["llm-70b"],
    )
    comment: fields.NonEmptyText = Field(
        description="Reason for the silence.", examples=["new switches in row 7"]
    )

    def silence(self, caller: Principal, now_s: float) -> Silence:
        """The silence for the store.

        Raises:
            InvalidRequest: it has no end, has ended already, lasts too long, or matches everything.
            JobNotFound: the token is for another job than `until_end_of` only.
        """
        matchers = fields.matchers_of(self.matchers)
        if all_match(matchers, {}):
            # A misspelt label, which no alert has, would silence all alerts.
            raise InvalidRequest(
                "matchers: want one that an empty label does not match; for all jobs job = ?*"
            )
        starts_s = now_s if self.starts_at is None else max(now_s, self.starts_at.timestamp())
        return Silence(
            silence_id=secrets.token_hex(12),
            project=caller.project,
            kind=self.kind,
            matchers=matchers,
            starts_s=starts_s,
            ends_s=self._ends_s(starts_s),
            author=caller.name,
            comment=self.comment,
            created_s=now_s,
            until_end_of=None if self.until_end_of is None else caller.key(self.until_end_of),
        )

    def _ends_s(self, starts_s: float) -> float:
        longest_s = MAX_SILENCE_DAYS * _DAY_S
        if self.ends_at is None:
            if self.until_end_of is None:
                raise InvalidRequest("ends_at: want a time, or until_end_of with a job")
            return starts_s + longest_s
        ends_s = self.ends_at.timestamp()
        if ends_s <= starts_s:
            raise InvalidRequest("ends_at: want a future time after starts_at")
        if ends_s - starts_s > longest_s:
            raise InvalidRequest(f"ends_at: a silence lasts at most {MAX_SILENCE_DAYS:g} days")
        return ends_s


class SilenceOut(fields.ResponseModel):
    """A silence: matchers, times and author."""

    silence_id: str
    kind: SilenceKind
    matchers: list[fields.MatcherOut]
    starts_at: fields.UnixTime = Field(validation_alias="starts_s")
    ends_at: fields.UnixTime = Field(validation_alias="ends_s")
    author: str = Field(description="Name of the token that created the silence.")
    comment: str
    created_at: fields.UnixTime = Field(validation_alias="created_s")
    until_end_of: fields.JobName | None = Field(
        description="Job whose current run ends the silence earlier than `ends_at`."
    )
    state: SilenceState

    @classmethod
    def of(cls, silence: Silence, now_s: float) -> "SilenceOut":
        """From the stored silence."""
        state: SilenceState = "coming" if now_s < silence.starts_s else "ended"
        if silence.is_active(now_s):
            state = "active"
        return cls.of_record(silence, matchers=fields.matchers_out(silence.matchers), state=state)


router = ApiRouter("alerts")

SilenceId = Annotated[str, fields.hex_id("silence")]


class SilencesOut(PageOut[SilenceOut]):
    """A page of silences, latest end first."""


@router.get("/silences", summary="List silences")
def list_silences(
    service: ServiceDep,
    caller: CallerDep,
    ended: Annotated[bool, Query(description="Whether to include ended silences.")] = False,
    cursor: fields.Cursor = None,
    limit: fields.Limit = 100,
) -> SilencesOut:
    """Active and future silences, a page at a time."""
    with service.store.read() as conn:
        now_s = service.database_time(conn)
        records, next_cursor = silences.page(
            conn, caller.project, ends_after_s=None if ended else now_s, cursor=cursor, limit=limit
        )
    items = [SilenceOut.of(silence, now_s) for silence in records]
    return SilencesOut(items=items, next_cursor=next_cursor)


@router.post("/silences", summary="Silence alerts", status_code=201, responses=refusals(409))
def create_silence(given: SilenceIn, service: ServiceDep, caller: CallerDep) -> SilenceOut:
    """During a silence, matching alerts notify nobody; they still fire and resolve."""
    with service.store.write() as conn:
        now_s = service.database_time(conn)
        silence = given.silence(caller, now_s)
        until = silence.until_end_of
        if until is not None and jobs.get(conn, until).ended_s is not None:
            raise Conflict(f"until_end_of: job {job_of(until)!r} has ended already")
        silences.add(conn, silence)
        body = given.model_dump(mode="json", exclude_defaults=True)
        write_audit(conn, caller, f"{silence.kind}.create", silence.silence_id, now_s=now_s, **body)
        notifications.wake_project(conn, caller.project, at_s=now_s)
    service.announcer.announce({"event": "alert", "project": caller.project})
    return SilenceOut.of(silence, now_s)


def end_silences_with_run(conn: Connection, service: Service, job_id: str) -> None:
    """End the silences that last until a run of this job ends; their alerts notify again."""
    now_s = service.database_time(conn)
    if silences.end_with_run(conn, job_id, now_s=now_s):
        notifications.wake_project(conn, project_of(job_id), at_s=now_s)


@router.get("/silences/{silence_id}", summary="Get a silence")
def get_silence(silence_id: SilenceId, service: ServiceDep, caller: CallerDep) -> SilenceOut:
    """Ended silences stay readable while results are kept."""
    with service.store.read() as conn:
        silence = silences.get(conn, caller.project, silence_id)
        return SilenceOut.of(silence, service.database_time(conn))


@router.delete("/silences/{silence_id}", summary="End a silence", status_code=204)
def end_silence(silence_id: SilenceId, service: ServiceDep, caller: CallerDep) -> None:
    """Firing alerts that the silence muted notify at once. Idempotent."""
    with service.store.write() as conn:
        now_s = service.database_time(conn)
        silence = silences.get(conn, caller.project, silence_id)
        silences.end(conn, caller.project, silence_id, now_s=now_s)
        if silence.ends_s > now_s:
            shown = SilenceOut.of(silence, now_s)
            ends = {"ends_at": shown.ends_at.isoformat()}
            detail = {
                "matchers": [matcher.model_dump(mode="json") for matcher in shown.matchers],
                "changes": changed_fields(ends, {"ends_at": fields.timestamp(now_s).isoformat()}),
            }
            write_audit(conn, caller, f"{silence.kind}.end", silence_id, now_s=now_s, **detail)
            notifications.wake_project(conn, caller.project, at_s=now_s)
    service.announcer.announce({"event": "alert", "project": caller.project})
