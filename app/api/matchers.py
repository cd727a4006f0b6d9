"""Matchers in requests and answers: which alerts a silence or an endpoint is about."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from app.alerts.matchers import Matcher
from app.api.fields import Label, Request, Text
from app.store.matcher_limits import MAX_MATCHERS


class MatcherOut(Request):
    """One label of alerts and a pattern for it."""

    label: Label = Field(
        description="alertname, job, rule, subject, severity, cause, worker or host, or one of "
        "the rule's or the job's own.",
        examples=["job"],
    )
    pattern: Text = Field(
        description="With * and ?; a label that an alert has not got is empty.", examples=["llm-*"]
    )
    is_negative: bool = Field(False, description="Match what the pattern does not.")


Matchers = Annotated[list[MatcherOut], Field(max_length=MAX_MATCHERS)]


def matchers_of(given: Iterable[MatcherOut]) -> list[Matcher]:
    """The matchers of a request."""
    return [Matcher(each.label, each.pattern, each.is_negative) for each in given]


def matchers_out(known: Sequence[Matcher]) -> list[MatcherOut]:
    """The same for an answer."""
    return [
        MatcherOut(label=each.label, pattern=each.pattern, is_negative=each.is_negative)
        for each in known
    ]
