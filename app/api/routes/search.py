"""Search for jobs and hosts by words, for the command palette and for scripts."""

from typing import Annotated, Literal

from fastapi import Query
from pydantic import Field

from app.api.http.fields import PRINTABLE, ResponseModel
from app.api.routes.dependencies import ApiRouter, CallerDep, ServiceDep
from app.store import hosts, jobs
from app.trace.job import job_of

router = ApiRouter("fleet")

MAX_RESULTS = 50


class FoundOut(ResponseModel):
    """A job or a host."""

    kind: Literal["job", "host"]
    id: str = Field(description="The job's id, or the host's name.", examples=["llm-70b"])
    name: str = Field(description="The job's name, or the host's.", examples=["LLM 70B"])
    labels: dict[str, str] = Field(description="The job's labels; empty for a host.")
    is_archived: bool


class SearchOut(ResponseModel):
    """What was found: the best first, jobs before hosts."""

    items: list[FoundOut]


@router.get("/search", summary="Search jobs and hosts")
def search(
    service: ServiceDep,
    caller: CallerDep,
    q: Annotated[
        str,
        Query(
            max_length=128,
            pattern=PRINTABLE,
            description="Words, in any order; each must be part of a job's id, name or labels "
            "(`owner=team-a`), or of a host's name.",
        ),
    ] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_RESULTS, description="Of each kind.")] = 10,
) -> SearchOut:
    """Finds archived jobs, too, after the others. Without words, the jobs that began last."""
    words = q.split()
    with service.store.read() as conn:
        records = jobs.matching(conn, caller.project, words, limit=limit)
        names = hosts.matching(conn, caller.project, words, limit=limit) if words else []
    items = [FoundOut.of_record(job, kind="job", id=job_of(job.job_id)) for job in records]
    items += [
        FoundOut(kind="host", id=name, name=name, labels={}, is_archived=False) for name in names
    ]
    return SearchOut(items=items)
