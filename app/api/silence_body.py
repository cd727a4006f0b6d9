"""Silences in requests and answers."""

import secrets
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.alerts.matchers import all_match
from app.alerts.silence import MAX_DAYS, Silence, SilenceKind
from app.api.changes import changed
from app.api.fields import Answer, Moment, Request, SomeText, timestamp
from app.api.matchers import MatcherOut, Matchers, matchers_of, matchers_out
from app.api.principal import Principal
from app.errors import InvalidRequest

_DAY_S = 86_400.0
EXAMPLE: dict[str, Any] = {
    "kind": "maintenance",
    "matchers": [{"label": "job", "pattern": "llm-*"}, {"label": "host", "pattern": "row-7-*"}],
    "starts_at": "2099-11-21T22:00:00Z",
    "ends_at": "2099-11-22T02:00:00Z",
    "comment": "new switches in row 7",
}
SilenceState = Literal["coming", "active", "ended"]


class SilenceIn(Request):
    """Alerts that match all of `matchers` are told to nobody in that time."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    kind: SilenceKind = Field(
        "silence", description="`maintenance` for work that was planned; it does the same."
    )
    matchers: Annotated[Matchers, Field(min_length=1)]
    starts_at: Moment | None = Field(None, description="Left out, or past: now.")
    ends_at: Moment = Field(description=f"At most {MAX_DAYS:g} days after it starts.")
    comment: SomeText = Field(description="Why.", examples=["new switches in row 7"])

    def silence(self, caller: Principal, now_s: float) -> Silence:
        """The silence that the store is to keep.

        Raises:
            InvalidRequest: it would be over already, last too long, or be of everything.
        """
        matchers = matchers_of(self.matchers)
        if all_match(matchers, {}):
            # A label that no alert has, or is misspelt, would silence them all.
            raise InvalidRequest(
                "matchers: want one that an empty label does not match; for all jobs job = ?*"
            )
        starts_s = now_s if self.starts_at is None else max(now_s, self.starts_at.timestamp())
        ends_s = self.ends_at.timestamp()
        if ends_s <= starts_s:
            raise InvalidRequest("ends_at: want a time that is to come, and after starts_at")
        if ends_s - starts_s > MAX_DAYS * _DAY_S:
            raise InvalidRequest(f"ends_at: a silence lasts at most {MAX_DAYS:g} days")
        return Silence(
            silence_id=secrets.token_hex(12),
            project=caller.project,
            kind=self.kind,
            matchers=matchers,
            starts_s=starts_s,
            ends_s=ends_s,
            author=caller.name,
            comment=self.comment,
            created_s=now_s,
        )


class SilenceOut(Answer):
    """Who is told nothing of which alerts, from when until when, and who wants it."""

    silence_id: str
    kind: SilenceKind
    matchers: list[MatcherOut]
    starts_at: datetime
    ends_at: datetime
    author: str = Field(description="Name of the token that it was made with.")
    comment: str
    created_at: datetime
    state: SilenceState

    @classmethod
    def of(cls, silence: Silence, now_s: float) -> "SilenceOut":
        """The silence as the API says it."""
        return cls(
            silence_id=silence.silence_id,
            kind=silence.kind,
            matchers=matchers_out(silence.matchers),
            starts_at=timestamp(silence.starts_s),
            ends_at=timestamp(silence.ends_s),
            author=silence.author,
            comment=silence.comment,
            created_at=timestamp(silence.created_s),
            state=_state(silence, now_s),
        )


def silence_end(silence: Silence, now_s: float) -> dict[str, Any]:
    """What the audit says when somebody ends it: of which alerts it was, and until when."""
    ends = (timestamp(silence.ends_s).isoformat(), timestamp(now_s).isoformat())
    return {
        "matchers": [each.model_dump(mode="json") for each in matchers_out(silence.matchers)],
        "changes": changed({"ends_at": ends[0]}, {"ends_at": ends[1]}),
    }


def _state(silence: Silence, now_s: float) -> SilenceState:
    if silence.is_active(now_s):
        return "active"
    return "coming" if now_s < silence.starts_s else "ended"
