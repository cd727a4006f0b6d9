"""The session: a page trades the token for a cookie that its scripts cannot read."""

from dataclasses import asdict

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from pydantic import SecretStr

from app.api.auth import client_address
from app.api.deps import OF_BODIES, ServiceDep, refusals
from app.api.fields import Answer, Request
from app.api.sessions import COOKIE, check_same_origin
from app.errors import Unauthorised
from app.store.tokens import SCOPES, Scope

router = APIRouter(tags=["session"])


class SessionIn(Request):
    """The token, once."""

    token: SecretStr


class PriceOut(Answer):
    """What a GPU costs an hour; the sign stands before an amount."""

    per_gpu_hour: float
    currency: str


class SessionOut(Answer):
    """Whether the caller is signed in; who is hears what a crash could lose here, as allowed.

    `scopes` are of the token they signed in with; `price` is null where the operator has set none.
    """

    authenticated: bool
    scopes: tuple[Scope, ...] = ()
    lossy: tuple[str, ...] = ()
    price: PriceOut | None = None


@router.post(
    "/session",
    operation_id="sign_in",
    summary="Sign in",
    status_code=204,
    responses=refusals(*OF_BODIES),
    openapi_extra={"security": []},
)
async def sign_in(
    given: SessionIn, request: HttpRequest, response: Response, service: ServiceDep
) -> None:
    """Sets the session cookie, for a token that may read.

    Ten failures in a minute from one address, and it has to wait.
    """
    if "sec-fetch-site" in request.headers or "origin" in request.headers:
        check_same_origin(request.url.scheme, request.headers)
    address = client_address(request.scope)
    service.sign_ins.check(address)
    found = await service.access.of_token(given.token.get_secret_value())
    if found is None:
        service.sign_ins.note(address)
        raise Unauthorised("that is no token of this service")
    caller, _ = found
    caller.check("read")
    response.set_cookie(
        COOKIE,
        service.access.sessions.new(caller.token_id),
        max_age=int(service.access.sessions.session_s),
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


@router.get(
    "/session",
    operation_id="get_session",
    summary="Ask whether one is signed in",
    response_model_exclude_unset=True,
    responses=refusals(),
    openapi_extra={"security": []},
)
async def get_session(request: HttpRequest, service: ServiceDep) -> SessionOut:
    """No refusal to who is not: a page asks before it shows the sign-in form."""
    try:
        caller = await service.access.caller(request.scope)
    except Unauthorised:
        return SessionOut(authenticated=False)
    return SessionOut(
        authenticated=True,
        scopes=tuple(scope for scope in SCOPES if scope in caller.scopes),
        lossy=await service.lossy.sentences(),
        price=None if service.price is None else PriceOut(**asdict(service.price)),
    )


@router.delete(
    "/session",
    operation_id="sign_out",
    summary="Sign out",
    status_code=204,
    responses=refusals(*OF_BODIES),
)
async def sign_out(request: HttpRequest, response: Response) -> None:
    """Takes the session cookie back from this browser, and from no other place.

    The cookie itself stays good until its time is over: revoke its token to end it at once.
    """
    secure = request.url.scheme == "https"
    response.delete_cookie(COOKIE, path="/", secure=secure, httponly=True, samesite="strict")
