"""`Principal`: the authenticated caller, its project, and the scope that a request needs."""

import re
from dataclasses import dataclass
from typing import cast

from starlette.types import Scope as RequestScope

from app.errors import Forbidden, JobNotFound
from app.store.tokens import SCOPES, Scope, TokenRecord
from app.trace.job import CANARY_PROJECT, DEFAULT_PROJECT, is_job_name, job_key

ROOT_ID = "root"  # shorter than any token's id
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
# Only an admin changes settings, rules and receivers, or switches the demo.
_ADMINS_CHANGE = frozenset({"settings", "demo", "rules", "receivers", "receiver-tests"})
_SCOPE_KEY = "paceline.principal"
TRACES_PATH = "/v1/traces"  # where OTLP exporters send spans: the one path of its own
SHARE_PATH = "/share/"  # links to snapshots; their route checks the token
OPS_PATH = re.compile("/api/v1/jobs/([^/]+)/ops")  # where workers push batches


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller; its project always comes from its token.

    `name` is the token's name, or its id if it has none.
    """

    project: str
    scopes: frozenset[Scope]
    job: str | None
    token_id: str
    name: str

    @property
    def actor(self) -> str:
        """Name of the caller in the audit, with the token's id, as names need not be unique."""
        return self.name if self.name == self.token_id else f"{self.name} ({self.token_id})"

    @property
    def is_operator(self) -> bool:
        """Whether the caller has the root token of the environment, as the operator does."""
        return self.token_id == ROOT_ID

    def key(self, job_id: str) -> str:
        """The key of one of the caller's jobs; raises JobNotFound for any other."""
        if self.job not in (None, job_id):
            raise JobNotFound(job_id, or_else="this token is for another job only")
        if not is_job_name(job_id):
            raise JobNotFound(job_id)
        return job_key(self.project, job_id)

    def check(self, *scopes: Scope) -> None:
        """Raise Forbidden unless the caller has one of these scopes."""
        if self.scopes.isdisjoint(scopes):
            raise Forbidden(f"this needs a token with the scope {' or '.join(scopes)}")


ROOT = Principal(DEFAULT_PROJECT, frozenset(SCOPES), None, ROOT_ID, "root token")
# This process itself, for its canary jobs; the token is made at the start and stored nowhere.
CANARY = Principal(CANARY_PROJECT, frozenset(("ingest", "read")), None, "canary", "canary")


def principal_of_token(record: TokenRecord) -> Principal:
    """The caller that has this token."""
    scopes = frozenset(record.scopes)
    name = record.name or record.token_id
    return Principal(record.project, scopes, record.job, record.token_id, name)


def needed_scope(method: str, path: str) -> Scope | None:
    """The scope that a request needs; None if every authenticated caller may send it.

    Routes that are not listed need `write` to change anything, so that a new route is no hole.
    """
    if path == TRACES_PATH:
        return "ingest"
    match path.split("/")[3:]:
        case ["session"]:
            return None
        case ["sessions", *_]:
            return "read"  # one's own may always be ended; the route checks whose it is
        case ["tokens" | "audit", *_]:
            return "admin"
        case ["rules", "check"]:
            return "read"
        case [first, *_] if first in _ADMINS_CHANGE and method not in _SAFE_METHODS:
            return "admin"
        case ["annotations"] if method == "POST":
            return "ingest"
        case ["jobs", _, "ops" | "end" | "exits" | "annotations"] if method == "POST":
            return "ingest"
        case ["jobs", _, "recording"] if method not in _SAFE_METHODS:
            return "admin"
        case ["jobs", _, "restore"] if method == "POST":
            return "admin"
        case ["jobs", _] if method == "DELETE":
            return "admin"
        case ["jobs", _] if method == "PUT":
            return "ingest"
        case ["jobs", _, "windows", _, "what-if"]:
            return "read"
    return "read" if method in _SAFE_METHODS else "write"


def needed_scopes(method: str, path: str) -> tuple[Scope, ...]:
    """The scopes of which a request needs one; empty if every authenticated caller may send it."""
    needed = needed_scope(method, path)
    if needed is None:
        return ()
    # Training and clusters report annotations, and people do.
    is_for_both = method == "POST" and path.endswith("/annotations")
    return (needed, "write") if is_for_both else (needed,)


def attach_principal(scope: RequestScope, principal: Principal) -> None:
    """Attach the caller to the request; `principal_of` reads it."""
    scope[_SCOPE_KEY] = principal


def project_of_request(scope: RequestScope) -> str | None:
    """Project of the request; None for routes without authentication."""
    principal = cast(Principal | None, scope.get(_SCOPE_KEY))
    return None if principal is None else principal.project


def principal_of(scope: RequestScope) -> Principal:
    """The caller of an authenticated request."""
    return cast(Principal, scope[_SCOPE_KEY])
