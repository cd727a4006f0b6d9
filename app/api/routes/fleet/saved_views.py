"""Saved views of the fleet page, for all readers of a project."""

from typing import Annotated

from pydantic import Field, StringConstraints

from app.api.http.fields import PRINTABLE, RequestModel, ResponseModel, UnixTime, hex_id
from app.api.routes.audit import write_audit
from app.api.routes.dependencies import ApiRouter, CallerDep, ServiceDep, refusals
from app.api.routes.fleet.fleet_jobs import Direction, Order
from app.api.service.job_state import JobState
from app.store import saved_views
from app.store.jobs import Lifecycle

router = ApiRouter("fleet")

ViewName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=PRINTABLE)]
ViewId = Annotated[str, hex_id("view")]


class ViewQuery(RequestModel):
    """Filters and order as in `GET /api/v1/fleet`; null: that of the page."""

    q: str | None = Field(None, max_length=128, pattern=PRINTABLE)
    state: JobState | None = None
    lifecycle: Lifecycle | None = None
    cause: str | None = Field(None, max_length=64, pattern=r"^[a-z-]+$")
    order: Order | None = None
    dir: Direction | None = None


class ViewIn(RequestModel):
    """A view to save."""

    name: ViewName = Field(examples=["Vision team, straggling"])
    query: ViewQuery = Field(examples=[{"q": "owner=vision", "state": "straggling"}])


class ViewOut(ResponseModel):
    """A saved view; the page's address is `/?` and its query."""

    view_id: str
    name: str
    query: dict[str, str]
    author: str = Field(description="Name of the token that saved the view.")
    saved_at: UnixTime = Field(validation_alias="saved_s")


class ViewsOut(ResponseModel):
    """All saved views of the project, by name."""

    items: list[ViewOut]


@router.get("/views", summary="List saved views")
def list_views(service: ServiceDep, caller: CallerDep) -> ViewsOut:
    """The views of the fleet page that anybody of the project has saved, at most 100."""
    with service.store.read() as conn:
        return ViewsOut(items=saved_views.list_all(conn, caller.project))


@router.post("/views", summary="Save a view of the fleet", status_code=201, responses=refusals(409))
def save_view(given: ViewIn, service: ServiceDep, caller: CallerDep) -> ViewOut:
    """409 if the project has a view of this name."""
    query = given.query.model_dump(exclude_none=True)
    with service.store.write() as conn:
        now_s = service.now_s()
        view = saved_views.save(
            conn, caller.project, name=given.name, query=query, author=caller.name, now_s=now_s
        )
        write_audit(conn, caller, "view.create", view.name, now_s=now_s, query=query)
    return ViewOut.model_validate(view)


@router.delete("/views/{view_id}", summary="Delete a saved view", status_code=204)
def delete_view(view_id: ViewId, service: ServiceDep, caller: CallerDep) -> None:
    """Saving it again brings it back, under a new id."""
    with service.store.write() as conn:
        view = saved_views.remove(conn, caller.project, view_id)
        query = dict(view.query)
        write_audit(conn, caller, "view.delete", view.name, now_s=service.now_s(), query=query)
