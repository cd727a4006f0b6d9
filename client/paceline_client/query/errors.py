"""Why a question was not answered.

QueryError
├── NoAnswer    nothing came, or nothing that is Paceline's
└── Refused     the server's own words; `status` and `code` are for programs
    ├── Denied      401 and 403: the token is not known, or may not do this
    ├── NotFound    404: no such job, window or report
    └── Busy        429 and 503: still so after all attempts
"""

from __future__ import annotations


class QueryError(Exception):
    """Base of all that a question raises; the message says what to do. It has no token in it."""


class NoAnswer(QueryError):
    """The server does not answer, or what answers is not Paceline.

    `may_help` says whether the same question may be answered later.
    """

    def __init__(self, message: str, *, may_help: bool = False) -> None:
        super().__init__(message)
        self.may_help = may_help


class Refused(QueryError):
    """The server has said no; `code` stays the same over versions."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.retry_after_s = 0.0
        self.status = status
        self.code = code
        self.detail = detail


class Denied(Refused):
    """The token is not known, or has not got the scope."""


class NotFound(Refused):
    """There is no such job, window or report, or it is another project's."""


class Busy(Refused):
    """The server asked to be left alone for longer than the caller wanted to wait."""


def refusal(status: int, code: str, detail: str) -> Refused:
    """The error for an answer with this status."""
    kinds = {401: Denied, 403: Denied, 404: NotFound, 429: Busy, 502: Busy, 503: Busy, 504: Busy}
    return kinds.get(status, Refused)(status, code, detail)
