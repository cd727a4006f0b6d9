"""Fields in which a request names the step and the replica that it is about."""

from typing import Annotated

from fastapi import Query

from app.api.fields import StepNumber

StepAsked = Annotated[StepNumber, Query(description="Left out: the one that took longest.")]
DpAsked = Annotated[
    int | None,
    Query(ge=0, le=2**31, description="Left out: the replica that held the step up longest."),
]
