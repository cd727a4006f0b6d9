"""Session: a page exchanges the token for a cookie that scripts cannot read."""

from dataclasses import asdict

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from pydantic import SecretStr

from app.api.http.auth import COOKIE, check_same_origin, client_address
from app.api.http.fields import RequestModel, ResponseModel
from app.api.routes.dependencies import BODY_REFUSALS, ServiceDep, refusals
from app.errors import Unauthorised
from app.store.tokens import SCOPES, Scope

router = APIRouter(tags=["session"])


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


@router.post(
    "/session",
    operation_id="sign_in",
    summary="Sign in",
    status_code=204,
    responses=refusals(*BODY_REFUSALS),
    openapi_extra={"security": []},
)
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
    found = await service.auth.of_token(given.token.get_secret_value())
    if found is None:
        service.sign_ins.note(address)
        raise Unauthorised("unknown token")
    caller, _ = found
    caller.check("read")
    response.set_cookie(
        COOKIE,
        service.auth.sessions.new(caller.token_id),
        max_age=int(service.auth.sessions.session_s),
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


@router.get(
    "/session",
    operation_id="get_session",
    summary="Get the session of the caller",
    response_model_exclude_unset=True,
    responses=refusals(),
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
        price=None if service.gpu_price is None else PriceOut(**asdict(service.gpu_price)),
    )


@router.delete(
    "/session",
    operation_id="sign_out",
    summary="Sign out",
    status_code=204,
    responses=refusals(*BODY_REFUSALS),
)
async def sign_out(request: HttpRequest, response: Response) -> None:
    """Deletes the session cookie in this browser only.

    The cookie stays valid until it expires: revoke its token to end it at once.
    """
    secure = request.url.scheme == "https"
    response.delete_cookie(COOKIE, path="/", secure=secure, httponly=True, samesite="strict")
