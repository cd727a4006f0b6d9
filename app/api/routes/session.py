"""Sessions: a page exchanges the token for a cookie that scripts cannot read.

They are listed and ended here, too.
"""

from typing import Annotated

from fastapi import Path, Response
from fastapi import Request as HttpRequest
from pydantic import Field, SecretStr
from starlette.concurrency import run_in_threadpool

from app.api.http.auth import COOKIE, check_same_origin, client_address
from app.api.http.fields import RequestModel, ResponseModel, UnixTime
from app.api.http.principal import ROOT, ROOT_ID, Principal, principal_of
from app.api.routes.audit import write_audit
from app.api.routes.dependencies import ApiRouter, CallerDep, ServiceDep
from app.api.service.service import Service
from app.errors import SessionNotFound, Unauthorised
from app.store import tokens
from app.store.credentials import sessions
from app.store.credentials.sessions import SessionRecord
from app.store.database import Connection
from app.store.tokens import SCOPES, Scope

router = ApiRouter("session")


class SessionIn(RequestModel):
    """The token to sign in with."""

    token: SecretStr


class PriceOut(ResponseModel):
    """Price of a GPU-hour; show the currency symbol before the amount."""

    per_gpu_hour: float
    currency: str


class SessionOut(ResponseModel):
    """Whether the caller is signed in; if so, with the scopes of the session's token.

    `lossy` lists what a crash could lose, if the operator allows such a setup. `disk` says how full
    it is, to callers with the scope admin, once it is nearly full. `price` is null if the operator
    has set none.
    """

    authenticated: bool
    scopes: tuple[Scope, ...] = ()
    lossy: tuple[str, ...] = ()
    disk: str | None = None
    price: PriceOut | None = None


@router.post("/session", summary="Sign in", status_code=204, openapi_extra={"security": []})
async def sign_in(
    given: SessionIn, request: HttpRequest, response: Response, service: ServiceDep
) -> None:
    """Sets the session cookie for a token with the scope read.

    After ten failures within a minute, further attempts from the same address are refused for a
    while.
    """
    if "sec-fetch-site" in request.headers or "origin" in request.headers:
        check_same_origin(request.url.scheme, request.headers)
    address = client_address(request.scope)
    service.sign_ins.check(address)
    admitted = await service.auth.of_token(given.token.get_secret_value())
    if admitted is None:
        service.sign_ins.note(address)
        raise Unauthorised("unknown token")
    caller, _ = admitted
    caller.check("read")
    cookie = await run_in_threadpool(
        service.auth.begin_session,
        caller,
        user_agent=request.headers.get("user-agent", ""),
        address=address,
    )
    response.set_cookie(
        COOKIE,
        cookie,
        max_age=int(service.auth.session_s),
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


@router.get(
    "/session",
    summary="Get the session of the caller",
    response_model_exclude_unset=True,
    openapi_extra={"security": []},
)
async def get_session(request: HttpRequest, service: ServiceDep) -> SessionOut:
    """Answers 200 also without a session, so that the page can decide to show the sign-in form."""
    try:
        caller = await service.auth.caller(request.scope)
    except Unauthorised:
        return SessionOut(authenticated=False)
    sentence = service.status.disk.sentence() if "admin" in caller.scopes else None
    return SessionOut(
        authenticated=True,
        scopes=tuple(scope for scope in SCOPES if scope in caller.scopes),
        **({} if sentence is None else {"disk": sentence}),
        lossy=await service.loss_warnings.sentences(),
        price=service.gpu_price,
    )


@router.delete("/session", summary="Sign out", status_code=204)
async def sign_out(request: HttpRequest, response: Response, service: ServiceDep) -> None:
    """Ends the session, in every process within 5 s, and deletes its cookie in this browser."""
    session = await service.auth.session_of(request.scope)
    if session is not None:
        await run_in_threadpool(_end, service, principal_of(request.scope), session)
    secure = request.url.scheme == "https"
    response.delete_cookie(COOKIE, path="/", secure=secure, httponly=True, samesite="strict")


class ActiveSessionOut(ResponseModel):
    """A signed-in page: with which token, from where, and until when."""

    session_id: str
    token_id: str
    token_name: str
    user_agent: str = Field(description="What the browser calls itself; empty if it does not say.")
    address: str = Field(description="Address that the sign-in came from.")
    created_at: UnixTime = Field(validation_alias="created_s")
    expires_at: UnixTime = Field(validation_alias="expires_s")
    last_used_at: UnixTime | None = Field(
        validation_alias="last_used_s",
        description="Time of the last request, to the minute; null if there was none.",
    )
    is_current: bool = Field(description="Whether this request was made in this session.")


class SessionsOut(ResponseModel):
    """Sessions that have neither ended nor expired, the newest first."""

    items: list[ActiveSessionOut]


SessionId = Annotated[
    str,
    Path(pattern="^[0-9a-f]{16}$", description="The session's id.", examples=["5f0c3a9be81d4267"]),
]


@router.get("/sessions", summary="List sessions")
async def list_sessions(
    request: HttpRequest, service: ServiceDep, caller: CallerDep
) -> SessionsOut:
    """Those of the caller's token; with the scope admin, of all tokens of the project.

    Sessions of the operator's token are listed to the operator only.
    """
    current = await service.auth.session_of(request.scope)
    current_id = None if current is None else current.session_id
    return await run_in_threadpool(_sessions_out, service, caller, current_id)


@router.delete("/sessions/{session_id}", summary="End a session", status_code=204)
def end_session(session_id: SessionId, service: ServiceDep, caller: CallerDep) -> None:
    """All processes refuse its cookie within 5 s. Idempotent until it would have expired."""
    with service.store.read() as conn:
        session = sessions.find(conn, session_id)
    if session is None or not _may_see(caller, session):
        raise SessionNotFound(session_id)
    _end(service, caller, session)


def _end(service: Service, caller: Principal, session: SessionRecord) -> None:
    now_s = service.now_s()
    with service.store.write() as conn:
        if sessions.end(conn, session.project, session.session_id, now_s=now_s):
            detail = {"token": session.token_id}
            write_audit(conn, caller, "session.end", session.session_id, now_s=now_s, **detail)
    service.auth.forget_session(session.session_id)


def _may_see(caller: Principal, session: SessionRecord) -> bool:
    if caller.token_id == session.token_id:
        return True
    is_of_project = session.project == caller.project and session.token_id != ROOT_ID
    return is_of_project and "admin" in caller.scopes


def _sessions_out(service: Service, caller: Principal, current_id: str | None) -> SessionsOut:
    with service.store.read() as conn:
        active = sessions.active(conn, caller.project, now_s=service.now_s())
        shown = [session for session in active if _may_see(caller, session)]
        names = {session.token_id: _token_name(conn, session.token_id) for session in shown}
    items = [
        ActiveSessionOut.of_record(
            session, token_name=names[session.token_id], is_current=session.session_id == current_id
        )
        for session in shown
    ]
    return SessionsOut(items=items)


def _token_name(conn: Connection, token_id: str) -> str:
    if token_id == ROOT_ID:
        return ROOT.name
    record = tokens.find(conn, token_id)
    return token_id if record is None else record.name or token_id
