"""The session: a page trades the token for a cookie that its scripts cannot read."""

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from pydantic import SecretStr

from app.api.auth import COOKIE, MAX_SECRET_CHARS, check_same_origin
from app.api.deps import ServiceDep, refusals
from app.api.fields import Answer, Request
from app.errors import Unauthorised

router = APIRouter(tags=["session"])


class SessionIn(Request):
    """The token, once."""

    token: SecretStr


class SessionOut(Answer):
    """Whether the caller is signed in."""

    authenticated: bool


@router.post(
    "/session",
    operation_id="sign_in",
    summary="Sign in",
    status_code=204,
    responses=refusals(400, 415, 429),
    openapi_extra={"security": []},
)
async def sign_in(
    given: SessionIn, request: HttpRequest, response: Response, service: ServiceDep
) -> None:
    """Sets the session cookie. Ten failures in a minute from one address, and it has to wait."""
    if "sec-fetch-site" in request.headers or "origin" in request.headers:
        check_same_origin(request.url.scheme, request.headers)
    address = request.client.host if request.client else ""
    service.sign_ins.check(address)
    if not service.access.is_token(given.token.get_secret_value()[:MAX_SECRET_CHARS]):
        service.sign_ins.note(address)
        raise Unauthorised("that is not the token")
    response.set_cookie(
        COOKIE,
        service.access.new_session(),
        max_age=int(service.access.session_s),
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


@router.get(
    "/session",
    operation_id="get_session",
    summary="Ask whether one is signed in",
    responses=refusals(),
    openapi_extra={"security": []},
)
async def get_session(request: HttpRequest, service: ServiceDep) -> SessionOut:
    """No refusal to who is not: a page asks before it shows the sign-in form."""
    try:
        service.access.admit("GET", request.url.scheme, request.headers)
    except Unauthorised:
        return SessionOut(authenticated=False)
    return SessionOut(authenticated=True)


@router.delete(
    "/session",
    operation_id="sign_out",
    summary="Sign out",
    status_code=204,
    responses=refusals(),
)
async def sign_out(request: HttpRequest, response: Response) -> None:
    """Takes the session cookie back from this browser."""
    secure = request.url.scheme == "https"
    response.delete_cookie(COOKIE, path="/", secure=secure, httponly=True, samesite="strict")
