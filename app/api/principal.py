"""Who is asking, and what they may do."""

from dataclasses import dataclass
from typing import cast

from starlette.types import Scope as RequestScope

from app.errors import Forbidden, JobNotFound
from app.store.tokens import SCOPES, Scope, TokenRecord
from app.trace.names import DEFAULT_PROJECT, is_job, qualified

ROOT_ID = "root"  # shorter than any token's id
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_PRINCIPAL = "paceline.principal"
TRACES_PATH = "/v1/traces"  # where OTLP exporters send spans: the one path of its own


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller that is known: the project comes from their token, and from nowhere else.

    `name` is the token's, for people; of one without a name its id.
    """

    project: str
    scopes: frozenset[Scope]
    job: str | None
    token_id: str
    name: str

    @property
    def actor(self) -> str:
        """Who they are in the audit: names may be the same, ids are not."""
        return self.name if self.name == self.token_id else f"{self.name} ({self.token_id})"

    @property
    def is_operator(self) -> bool:
        """Whether they have the token of the environment, as whoever runs the service does."""
        return self.token_id == ROOT_ID

    def key(self, job_id: str) -> str:
        """The key of one of the caller's jobs.

        Raises:
            JobNotFound: no job can have this id, or the token is good for another job only.
        """
        if self.job not in (None, job_id):
            raise JobNotFound(job_id, or_else="this token is for another job only")
        if not is_job(job_id):
            raise JobNotFound(job_id)
        return qualified(self.project, job_id)

    def check(self, scope: Scope) -> None:
        """Returns if the caller may do what takes this scope.

        Raises:
            Forbidden: the token has not got it.
        """
        if scope not in self.scopes:
            raise Forbidden(f"this takes a token with the scope {scope}")


ROOT = Principal(DEFAULT_PROJECT, frozenset(SCOPES), None, ROOT_ID, "root token")


def of_token(record: TokenRecord) -> Principal:
    """Who has this token."""
    scopes = frozenset(record.scopes)
    name = record.name or record.token_id
    return Principal(record.project, scopes, record.job, record.token_id, name)


def needed_scope(method: str, path: str) -> Scope | None:
    """What a caller of /api needs; None for what anybody may do who is known.

    What is not named here takes the scope for changing things, so that a new route is no hole.
    """
    if path == TRACES_PATH:
        return "ingest"
    match path.split("/")[3:]:
        case ["session"]:
            return None
        case ["tokens" | "audit", *_]:
            return "admin"
        case ["rules", "check"]:
            return "read"
        case ["settings" | "rules" | "endpoints", *_] if method not in _SAFE_METHODS:
            return "admin"
        case ["jobs", _, "ops" | "end" | "scores"] if method == "POST":
            return "ingest"
        case ["jobs", _, "recording"] if method not in _SAFE_METHODS:
            return "admin"
        case ["jobs", _] if method == "PUT":
            return "ingest"
        case ["jobs", _, "windows", _, "what-if"]:
            return "read"
    return "read" if method in _SAFE_METHODS else "write"


def attach(scope: RequestScope, principal: Principal) -> None:
    """Say whose request this is; `principal_of` tells it to the routes."""
    scope[_PRINCIPAL] = principal


def project_asking(scope: RequestScope) -> str | None:
    """Whose request this is; None where that need not be known."""
    found = scope.get(_PRINCIPAL)
    return None if found is None else cast(Principal, found).project


def principal_of(scope: RequestScope) -> Principal:
    """Whose request this is; the guard has let them in."""
    return cast(Principal, scope[_PRINCIPAL])
