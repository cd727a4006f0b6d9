"""Requests that stay inside until they are released."""

import asyncio
from contextlib import asynccontextmanager

from app.api.http.principal import Principal, attach_principal

BATCH = ("POST", "/api/v1/jobs/llm-70b/ops")
REPORT = ("PUT", "/api/v1/jobs/llm-70b")
PAGE = ("GET", "/api/v1/fleet")
QUESTION = ("POST", "/api/v1/jobs/llm-70b/windows/latest/what-if")
DOWNLOAD = ("GET", "/api/v1/jobs/llm-70b/windows/latest/timeline")


class HeldRoute:
    """Answers when released; counts the requests inside."""

    def __init__(self):
        self.go_on = asyncio.Event()
        self.inside = []

    async def __call__(self, scope, receive, send):
        self.inside.append(scope["path"])
        await self.go_on.wait()
        self.inside.remove(scope["path"])


def no_body():
    """What a caller sends that has no body and does not hang up."""
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive():
        for message in messages:
            return message
        return await asyncio.Event().wait()

    return receive


async def ignore(message):
    pass


def asked(request, project="a"):
    method, path = request
    scope = {"type": "http", "method": method, "path": path, "headers": []}
    attach_principal(scope, Principal(project, frozenset(), None, "id", project))
    return scope


@asynccontextmanager
async def held(app, route, *requests):
    """These requests have begun, and end after the block."""
    tasks = []
    for request in requests:
        tasks.append(asyncio.create_task(app(asked(*request), no_body(), ignore)))
        await turns()
    try:
        yield tasks
    finally:
        route.go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)


async def turns():
    """All that can go on has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)
