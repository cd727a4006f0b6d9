"""The HTTP application: middleware from the outside in, and every router."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.middleware import Middleware
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from app.api.documents import routes as documentation
from app.api.http import errors
from app.api.http.bodies import BodyLimit, ProjectRates
from app.api.http.errors import refuse_unknown_parameters
from app.api.http.middleware import (
    AuthMiddleware,
    ErrorMiddleware,
    HeaderMiddleware,
    HostMiddleware,
)
from app.api.http.request_log import RequestLog, route_labels
from app.api.http.work_places import InFlightLimit, ProjectShareLimit, RequestPace, WorkPlaces
from app.api.openapi import describe
from app.api.pages import FrontendFiles, Pages, StaticFiles, frontend_dir
from app.api.routes import (
    audit,
    events,
    health,
    pictures,
    search,
    session,
    settings,
    share_links,
    status,
    tokens,
)
from app.api.routes.alerts import alerts, deliveries, receivers, rules, silences
from app.api.routes.events import tell_when_behind
from app.api.routes.fleet import fleet, hosts, metrics, saved_views
from app.api.routes.jobs import annotations, fixes, jobs, lifecycle, ops, otlp, recording
from app.api.routes.pictures import LinkedPictureMiddleware, PictureMiddleware
from app.api.routes.windows import (
    advice,
    arrivals,
    charts,
    compare,
    headline,
    ribbon,
    timeline,
    traces,
    what_if,
    windows,
    workers,
)
from app.api.service.service import Service
from app.charts.report.png import png

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
API = "/api/v1"
ROUTERS = (
    *(fleet.router, saved_views.router, search.router, hosts.router),
    *(jobs.router, lifecycle.router, recording.router, fixes.router, annotations.router),
    *(windows.router, ribbon.router, timeline.router, traces.router, arrivals.router),
    *(what_if.router, advice.router, windows.steps_router, workers.router),
    # The timeline's charts come before the other charts of a window, which take any name.
    *(timeline.charts_router, charts.router, headline.router, compare.router),
    *(alerts.router, rules.router, silences.router, receivers.router, deliveries.router),
    *(audit.router, events.router, session.router, tokens.router, share_links.router),
    *(settings.router, status.router),
)


class Application(FastAPI):
    """FastAPI with our OpenAPI document; middleware is for requests only."""

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            return await super().__call__(scope, receive, send)
        scope["app"] = self
        return await self.router(scope, receive, send)

    @override
    def openapi(self) -> dict[str, Any]:
        described = (*ops.described_router.routes, *pictures.described_router.routes)
        return describe(self, [*self.routes, *described])


def application(
    service: Service,
    *,
    allowed_hosts: Iterable[str],
    max_body_bytes: int,
    rates: ProjectRates,
    close: Callable[[], None],
) -> FastAPI:
    """The application over this service; calls `close` when it has stopped."""
    pages = Pages(frontend_dir())
    app = Application(
        title="Paceline",
        version=version("paceline"),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan(service, close),
        middleware=_middleware(service, pages.files, allowed_hosts, max_body_bytes, rates),
        routes=[*_routes()],
    )
    app.state.service = service
    errors.install_error_handlers(app)
    app.include_router(pages.router())
    app.router.default = pages.or_else(app.router.default)
    return app


@cache
def _routes() -> Sequence[BaseRoute]:
    """All routes; built once, as FastAPI takes as long for it as for a hundred requests."""
    api, answered = APIRouter(prefix=API), APIRouter()
    for router in ROUTERS:
        api.include_router(router)
    answered.include_router(api, dependencies=[Depends(refuse_unknown_parameters)])
    # Standard clients of these send parameters of their own.
    of_service = (otlp.router, health.router, metrics.router, share_links.pages_router)
    for other in (*of_service, documentation.router):
        answered.include_router(other)
    return answered.routes


def _middleware(
    service: Service,
    files: FrontendFiles,
    allowed_hosts: Iterable[str],
    max_body_bytes: int,
    rates: ProjectRates,
) -> list[Middleware]:
    """Middleware from the outside in: no body is read before the caller is admitted."""
    routes = (route for router in ROUTERS for route in router.routes)
    paths = [f"{API}{route.path}" for route in routes if isinstance(route, APIRoute)]
    nouns = route_labels([*paths, ops.PUSH_PATH, pictures.LINK_PATH])
    return [
        Middleware(RequestPace),
        Middleware(HeaderMiddleware),
        Middleware(RequestLog, measured=service.metrics, nouns=nouns, refused=service.refused_jobs),
        Middleware(ErrorMiddleware),
        Middleware(HostMiddleware, allowed={*LOOPBACK_NAMES, *allowed_hosts}),
        Middleware(StaticFiles, files=files),
        Middleware(InFlightLimit),
        Middleware(AuthMiddleware, access=service.auth, links=service.picture_links, limits=rates),
        Middleware(ProjectShareLimit),
        Middleware(BodyLimit, max_bytes=max_body_bytes),
        Middleware(LinkedPictureMiddleware, now_s=service.now_s),
        Middleware(WorkPlaces),
        Middleware(ops.PushOpsMiddleware, service=service),
        Middleware(PictureMiddleware, draw=png),
    ]


def _lifespan(
    service: Service, close: Callable[[], None]
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        work = (service.hub.run(), tell_when_behind(service))
        tasks = [asyncio.create_task(task) for task in work]
        try:
            yield
        finally:
            service.hub.close()
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await service.hub.close_listener()
            await service.auth.close()
            await service.writer.close()
            close()

    return lifespan
