"""Tokens of the caller's project."""

from typing import Annotated

from fastapi import Path
from pydantic import Field

from app.api.http.fields import Cursor, Limit, NonEmptyText, RequestModel, ResponseModel, UnixTime
from app.api.routes.audit import write_audit
from app.api.routes.dependencies import ApiRouter, CallerDep, PageOut, ServiceDep
from app.store import tokens
from app.store.tokens import NewToken, Scope
from app.trace.job import JOB_PATTERN

router = ApiRouter("tokens")

MAX_DAYS = 3650.0
_DAY_S = 86_400.0

TokenId = Annotated[
    str,
    Path(pattern=r"^[0-9A-Za-z]{1,32}$", description="The token's id.", examples=["x7Kq2mZ0aB"]),
]


class TokenIn(RequestModel):
    """Name, scopes, job and lifetime of a new token."""

    name: NonEmptyText = Field(description="Name of the token, for people.", examples=["cluster A"])
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=4)]
    job: Annotated[str, Field(pattern=JOB_PATTERN)] | None = Field(
        None, description="Restrict the token to this job; only with the scope ingest alone."
    )
    expires_days: float | None = Field(
        None,
        gt=0,
        le=MAX_DAYS,
        allow_inf_nan=False,
        description="Days until the token expires; default: never.",
    )

    def wanted(self, project: str, now_s: float) -> NewToken:
        """The token for the store."""
        expires_s = None if self.expires_days is None else now_s + self.expires_days * _DAY_S
        return NewToken(project, self.name, self.scopes, self.job, expires_s)


class TokenOut(ResponseModel):
    """A token without its secret, which is not stored."""

    token_id: str
    name: str
    scopes: list[Scope]
    job: str | None
    created_at: UnixTime = Field(validation_alias="created_s")
    expires_at: UnixTime | None = Field(validation_alias="expires_s")
    revoked_at: UnixTime | None = Field(validation_alias="revoked_s")
    last_used_at: UnixTime | None = Field(
        validation_alias="last_used_s",
        description="Time of the last use, to the minute; null if never used.",
    )


class CreatedTokenOut(TokenOut):
    """The new token; its text is shown only once."""

    token: str


class TokensOut(PageOut[TokenOut]):
    """A page of tokens, by id."""


@router.get("/tokens", summary="List the project's tokens")
def list_tokens(
    service: ServiceDep, caller: CallerDep, cursor: Cursor = None, limit: Limit = 100
) -> TokensOut:
    """All tokens, including revoked ones, by id, a page at a time."""
    with service.store.read() as conn:
        return TokensOut.of_page(tokens.page(conn, caller.project, cursor=cursor, limit=limit))


@router.post("/tokens", summary="Create a token", status_code=201)
def create_token(token: TokenIn, service: ServiceDep, caller: CallerDep) -> CreatedTokenOut:
    """The token's text is shown only once.

    To replace a token, create the new one first, then revoke the old one.
    """
    now_s = service.now_s()
    with service.store.write() as conn:
        record, text = tokens.create(conn, token.wanted(caller.project, now_s), now_s=now_s)
        detail = token.model_dump(exclude_none=True)
        write_audit(conn, caller, "token.create", record.token_id, now_s=now_s, **detail)
    return CreatedTokenOut.of_record(record, token=text)


@router.delete("/tokens/{token_id}", summary="Revoke a token", status_code=204)
def revoke_token(token_id: TokenId, service: ServiceDep, caller: CallerDep) -> None:
    """All processes refuse the token within 5 s. Idempotent."""
    now_s = service.now_s()
    with service.store.write() as conn:
        if tokens.revoke(conn, caller.project, token_id, now_s=now_s):
            write_audit(conn, caller, "token.revoke", token_id, now_s=now_s)
    service.auth.forget(token_id)
