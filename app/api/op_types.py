"""A job's own operation types, as a registration describes them and the API shows them."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from app.api.fields import Answer, Request
from app.trace import user_types
from app.trace.ops import OpTypes

TypeName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=user_types.MAX_NAME,
        pattern=r"^[a-z0-9][a-z0-9-]*$",
        description="Lower-case letters, digits and hyphens.",
    ),
]


class OpTypeIn(Request):
    """An operation type of a job's own: whom it meets, and what it waits its turn with."""

    name: TypeName
    kind: Literal["compute", "p2p", "collective"]
    axis: Literal["none", "tp", "pp", "dp", "ep"] | None = Field(
        None,
        description="Whom it meets: the stages, the dp ranks, those of its ep block; nobody for "
        "none and tp, whose peers are recorded once. A collective has to say.",
    )
    stream: TypeName | None = Field(
        None,
        description="Operations of a stream run one after the other. Left out: compute for kind "
        "compute, else a stream of its own.",
    )
    pairs_with: TypeName | None = Field(
        None, description="Of a p2p type that sends: the type that receives."
    )
    towards: Literal["next", "previous"] | None = Field(
        None, description="Of a p2p type that sends: the stage that receives."
    )


class OpTypeOut(Answer):
    """An operation type of a job's own; `pairs_with` and `towards` are null but for a send."""

    name: str
    kind: str
    axis: str
    stream: str
    pairs_with: str | None = None
    towards: str | None = None


def checked(described: Sequence[OpTypeIn]) -> OpTypes:
    """The job's operation types, the built-in ones among them.

    Raises:
        InvalidRequest: they do not go together; the message names the type and the field.
    """
    return user_types.parse([each.model_dump(exclude_none=True) for each in described])


def shown(op_types: OpTypes) -> list[OpTypeOut]:
    """The job's own operation types as the API says them."""
    return [OpTypeOut(**each) for each in user_types.describe(op_types)]
