"""Annotations: deploys, checkpoints, drained nodes and notes, of a job or of a whole project."""

from datetime import datetime
from typing import Annotated, Any, Self

from fastapi import Query, Response
from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from app.api.http import fields
from app.api.http.principal import Principal
from app.api.routes.audit import write_audit
from app.api.routes.dependencies import ApiRouter, CallerDep, JobKey, PageOut, Responses, ServiceDep
from app.api.service.annotation_places import annotation_text, placed_at_steps
from app.api.service.service import Service
from app.errors import AnnotationNotFound, Forbidden
from app.store import annotations
from app.store.annotations import (
    MAX_KEY,
    MAX_SOURCE,
    MAX_TEXT,
    Annotation,
    AnnotationFilter,
    AnnotationKind,
)

router = ApiRouter("annotations")

_ANNOTATION_EXAMPLE: JsonDict = {
    "kind": "deploy",
    "text": "v1.4",
    "source": "ci",
    "idempotency_key": "deploy-1.4",
}
_PROJECT_EXAMPLE: JsonDict = {
    "kind": "node-drained",
    "host": "host-043",
    "text": "kernel update",
    "matchers": [{"label": "host", "pattern": "host-043"}],
    "source": "kubernetes",
}


IdempotencyKey = Annotated[str, Field(min_length=1, max_length=MAX_KEY, pattern=fields.PRINTABLE)]


class _AnnotationFields(fields.RequestModel):
    kind: AnnotationKind
    text: Annotated[str, Field(max_length=MAX_TEXT, pattern=fields.PRINTABLE)] = Field(
        "", description="In words, one line; needed for `note` and `other`.", examples=["v1.4"]
    )
    host: fields.Text | None = Field(
        None, description="The host that it is about.", examples=["host-043"]
    )
    at: fields.Moment | None = Field(None, description="When it happened; default: now.")
    ends_at: fields.Moment | None = Field(
        None, description="When it ended; default: it is a moment."
    )
    source: Annotated[str, Field(max_length=MAX_SOURCE, pattern=fields.PRINTABLE)] = Field(
        "", description="The program that reports it.", examples=["ci"]
    )
    idempotency_key: IdempotencyKey | None = Field(
        None,
        description="A text of your choice: a second request with the same one stores nothing "
        "and answers with the first one's annotation.",
        examples=["deploy-1.4"],
    )

    def annotation(
        self, caller: Principal, job_id: str | None, now_s: float, **more: Any
    ) -> Annotation:
        """The annotation for the store."""
        return Annotation(
            annotation_id=annotations.new_id(caller.project, job_id, self.idempotency_key),
            project=caller.project,
            job_id=job_id,
            kind=self.kind,
            text=self.text,
            host=self.host or None,
            at_s=now_s if self.at is None else self.at.timestamp(),
            ends_s=None if self.ends_at is None else self.ends_at.timestamp(),
            epoch=None,
            source=self.source,
            author=caller.name,
            created_s=now_s,
            **{"matchers": (), "step": None} | more,
        )


class AnnotationIn(_AnnotationFields):
    """An event of one job."""

    model_config = ConfigDict(json_schema_extra={"examples": [_ANNOTATION_EXAMPLE]})

    step: int | None = Field(
        None,
        ge=0,
        le=2**53,
        description="The step of the current run in which it happened; default: by `at`.",
    )


class ProjectAnnotationIn(_AnnotationFields):
    """An event of all jobs that match; without matchers, of all jobs of the project."""

    model_config = ConfigDict(json_schema_extra={"examples": [_PROJECT_EXAMPLE]})

    matchers: fields.Matchers = Field(
        [],
        description="Which jobs: patterns for `job`, for labels of the job, and for `host`, which "
        "matches jobs with a worker on such a host.",
    )


class AnnotationOut(fields.ResponseModel):
    """An annotation."""

    annotation_id: str
    job_id: fields.JobName | None = Field(
        description="Null: of all jobs of the project that match."
    )
    matchers: list[fields.MatcherOut]
    kind: AnnotationKind
    text: str
    label: str = Field(description="The annotation in words, as the pages show it.")
    host: str | None
    at: fields.UnixTime = Field(validation_alias="at_s")
    ends_at: fields.UnixTime | None = Field(validation_alias="ends_s")
    epoch: int | None
    step: int | None = Field(description="The step that was given, or null.")
    source: str
    author: str = Field(description="Name of the token that reported it.")
    created_at: fields.UnixTime = Field(validation_alias="created_s")

    @classmethod
    def of(cls, record: Annotation, **more: object) -> Self:
        """From the stored annotation."""
        matchers, label = fields.matchers_out(record.matchers), annotation_text(record)
        return cls.of_record(record, matchers=matchers, label=label, **more)


class PlacedAnnotationOut(AnnotationOut):
    """An annotation of a job, with its place among the job's steps."""

    placed_epoch: int | None
    placed_step: int | None = Field(
        description="The step that was given, else the first one after its time, to within a "
        "window; null if there is none yet."
    )


class AnnotationsOut(PageOut[AnnotationOut]):
    """A page of annotations, newest first."""


class PlacedAnnotationsOut(PageOut[PlacedAnnotationOut]):
    """A page of a job's annotations, newest first."""


_STORED_BEFORE: Responses = {
    200: {"description": "Stored before, by its `idempotency_key`.", "model": AnnotationOut}
}
AnnotationId = Annotated[str, fields.hex_id("annotation")]
Since = Annotated[
    fields.Moment | None,
    Query(alias="from", description="Only annotations that have not ended before this time."),
]
Until = Annotated[
    fields.Moment | None, Query(alias="to", description="Only annotations from before this time.")
]
KindQuery = Annotated[AnnotationKind | None, Query(description="Only annotations of this kind.")]


def _filter(
    since: datetime | None, until: datetime | None, kind: AnnotationKind | None
) -> AnnotationFilter:
    return AnnotationFilter(
        since_s=None if since is None else since.timestamp(),
        until_s=None if until is None else until.timestamp(),
        kinds=() if kind is None else (kind,),
    )


@router.post(
    "/jobs/{job_id}/annotations",
    summary="Annotate a job",
    status_code=201,
    responses=_STORED_BEFORE,
)
def add_annotation(
    job_id: JobKey, given: AnnotationIn, service: ServiceDep, caller: CallerDep, response: Response
) -> AnnotationOut:
    """Report an event of the job: a deploy, a checkpoint, a change of its configuration.

    Needs the scope ingest or write. The newest 1,000 of a job are kept, as long as results are;
    60 in a minute are taken.
    """
    wanted = given.annotation(caller, job_id, service.now_s(), step=given.step)
    return _add(service, caller, wanted, response)


@router.get("/jobs/{job_id}/annotations", summary="List a job's annotations")
def list_annotations_of_job(
    job_id: JobKey,
    service: ServiceDep,
    since: Since = None,
    until: Until = None,
    kind: KindQuery = None,
    cursor: fields.Cursor = None,
    limit: fields.Limit = 100,
) -> PlacedAnnotationsOut:
    """Those of the job, and those of the project that match it, newest first."""
    with service.store.read() as conn:
        records, next_cursor = annotations.page_of_job(
            conn, job_id, _filter(since, until, kind), cursor=cursor, limit=limit
        )
        placed = placed_at_steps(conn, job_id, records)
    items = [
        PlacedAnnotationOut.of(place.annotation, placed_epoch=place.epoch, placed_step=place.step)
        for place in placed
    ]
    return PlacedAnnotationsOut(items=items, next_cursor=next_cursor)


@router.delete(
    "/jobs/{job_id}/annotations/{annotation_id}",
    summary="Delete a job's annotation",
    status_code=204,
)
def delete_annotation_of_job(
    job_id: JobKey, annotation_id: AnnotationId, service: ServiceDep, caller: CallerDep
) -> None:
    """The audit log keeps what it said. One of the whole project is deleted there."""
    _remove(service, caller, annotation_id, job_id)


@router.post(
    "/annotations", summary="Annotate many jobs", status_code=201, responses=_STORED_BEFORE
)
def add_project_annotation(
    given: ProjectAnnotationIn, service: ServiceDep, caller: CallerDep, response: Response
) -> AnnotationOut:
    """Report an event of all jobs of the project that match, such as a drained node.

    Needs the scope ingest or write, and a token that is not restricted to one job. The newest 1,000
    of a project are kept, as long as results are; 60 in a minute are taken.
    """
    if caller.job is not None:
        raise Forbidden(
            f"this token is for one job: use POST /api/v1/jobs/{caller.job}/annotations"
        )
    wanted = given.annotation(
        caller, None, service.now_s(), matchers=fields.matchers_of(given.matchers)
    )
    return _add(service, caller, wanted, response)


@router.get("/annotations", summary="List the project's annotations")
def list_annotations(
    service: ServiceDep,
    caller: CallerDep,
    since: Since = None,
    until: Until = None,
    kind: KindQuery = None,
    cursor: fields.Cursor = None,
    limit: fields.Limit = 100,
) -> AnnotationsOut:
    """Those of the whole project and of all its jobs, newest first."""
    with service.store.read() as conn:
        records, next_cursor = annotations.page(
            conn, caller.project, _filter(since, until, kind), cursor=cursor, limit=limit
        )
    items = [AnnotationOut.of(record) for record in records]
    return AnnotationsOut(items=items, next_cursor=next_cursor)


@router.delete("/annotations/{annotation_id}", summary="Delete an annotation", status_code=204)
def delete_annotation(annotation_id: AnnotationId, service: ServiceDep, caller: CallerDep) -> None:
    """One of the whole project, or of any of its jobs. The audit log keeps what it said."""
    _remove(service, caller, annotation_id)


def _add(
    service: Service, caller: Principal, wanted: Annotation, response: Response
) -> AnnotationOut:
    with service.store.write() as conn:
        stored, is_new = annotations.add(conn, wanted)
        if is_new:
            now_s, added_id = wanted.created_s, stored.annotation_id
            write_audit(conn, caller, "annotation.add", added_id, now_s=now_s, **_audited(stored))
    if is_new:
        _announce(service, stored)
    else:
        response.status_code = 200
    return AnnotationOut.of(stored)


def _remove(
    service: Service, caller: Principal, annotation_id: str, job_id: str | None = None
) -> None:
    with service.store.write() as conn:
        removed = annotations.remove(conn, caller.project, annotation_id)
        if job_id not in (None, removed.job_id):
            raise AnnotationNotFound(annotation_id)  # undoes the removal
        now_s, detail = service.now_s(), _audited(removed)
        write_audit(conn, caller, "annotation.delete", annotation_id, now_s=now_s, **detail)
    _announce(service, removed)


def _audited(record: Annotation) -> JsonDict:
    """All that it takes to add it again."""
    out = AnnotationOut.of(record)
    return out.model_dump(mode="json", exclude_none=True, exclude={"annotation_id", "label"})


def _announce(service: Service, changed: Annotation) -> None:
    if changed.job_id is not None:
        service.announce_job(changed.job_id)
    else:
        service.announcer.announce({"event": "alert", "project": changed.project})
