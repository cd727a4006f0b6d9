"""Edits of a what-if question as JSON, for the API and for files of the command line."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, FiniteFloat, model_validator
from pydantic_core import PydanticCustomError

from app.engine.questions.edits import (
    MAX_EDITS,
    MAX_FACTOR,
    MAX_SECONDS,
    Add,
    DurationChange,
    Edit,
    Factor,
    FromWorker,
    Ideal,
    Selection,
    Set,
)
from app.trace.ops import MAX_TYPE_NAME

# Half the workers of the largest supported job; a further edit can name the rest.
# With their names it takes 82 kB; a question has at most 128 kB (app/api/http/bodies.py).
MAX_LIST_ITEMS = 8192
# More than any object has: describing each unknown field takes time.
_MAX_FIELDS = 16

_Item = TypeVar("_Item")
# Only the first item that is wrong is described.
_List = Annotated[list[_Item], FailFast()]
_Index = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Step = Annotated[int, Field(ge=0, le=2**53)]
_Seconds = Annotated[FiniteFloat, Field(ge=0, le=MAX_SECONDS, description="Duration in seconds.")]


class _Strict(BaseModel):
    """Strict: unknown keys and numbers as text are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > _MAX_FIELDS:
            known = {"num": len(given), "fields": ", ".join(cls.model_fields)}
            raise PydanticCustomError("too_many_fields", "{num} fields: it has {fields}", known)
        return given


class SelectIn(_Strict):
    """Selects operations that match all given fields; an empty field matches all operations."""

    op_types: _List[Annotated[str, Field(min_length=1, max_length=MAX_TYPE_NAME)]] = Field(
        [],
        max_length=256,
        description="Operation types, `forward-pp-comm` or `backward-pp-comm` (send and "
        "receive together), or the groups compute, pp-comm, dp-comm and comm.",
        examples=[["pp-comm"]],
    )
    stages: _List[_Index] = Field([], max_length=MAX_LIST_ITEMS)
    dp_ranks: _List[_Index] = Field([], max_length=MAX_LIST_ITEMS)
    workers: _List[Annotated[_List[_Index], Field(min_length=2, max_length=2)]] = Field(
        [], max_length=MAX_LIST_ITEMS, description="Workers as pairs [dp rank, stage]."
    )
    steps: _List[_Step] = Field([], max_length=MAX_LIST_ITEMS)
    microbatches: _List[_Index] = Field(
        [],
        max_length=MAX_LIST_ITEMS,
        description="Micro-batch numbers; operations without one do not match.",
    )

    def selection(self) -> Selection:
        """The engine's selection."""
        return Selection(
            tuple(self.op_types),
            tuple(self.stages),
            tuple(self.dp_ranks),
            tuple((dp_rank, stage) for dp_rank, stage in self.workers),
            tuple(self.steps),
            tuple(self.microbatches),
        )


class IdealIn(_Strict):
    """Sets the duration of the same operation type without stragglers."""

    kind: Literal["ideal"]


class FactorIn(_Strict):
    """Multiplies the duration by `value`."""

    kind: Literal["factor"]
    value: Annotated[FiniteFloat, Field(ge=0, le=MAX_FACTOR)]


class AddIn(_Strict):
    """Adds `value` seconds to the duration, but not below 0 s; `value` may be negative."""

    kind: Literal["add"]
    value: Annotated[
        FiniteFloat, Field(ge=-MAX_SECONDS, le=MAX_SECONDS, description="Duration in seconds.")
    ]


class SetIn(_Strict):
    """Sets the duration to `value` seconds."""

    kind: Literal["set"]
    value: _Seconds


class FromWorkerIn(_Strict):
    """Sets the duration of another worker's operation of the same type, number and step."""

    kind: Literal["from-worker"]
    dp_rank: _Index
    stage: _Index


ChangeIn = Annotated[IdealIn | FactorIn | AddIn | SetIn | FromWorkerIn, Field(discriminator="kind")]


_CHANGES: dict[str, Callable[..., DurationChange]] = {
    "ideal": Ideal,
    "factor": Factor,
    "add": Add,
    "set": Set,
    "from-worker": FromWorker,
}


class EditIn(_Strict):
    """Changes the duration of selected operations; for those with peers, of the transfer."""

    select: SelectIn = SelectIn()
    change: ChangeIn

    def edit(self) -> Edit:
        """The engine's edit."""
        values = self.change.model_dump(exclude={"kind"}).values()
        return Edit(_CHANGES[self.change.kind](*values), self.select.selection())


class QuestionIn(_Strict):
    """Edits, applied in order, each to the result of the previous ones."""

    edits: _List[EditIn] = Field(max_length=MAX_EDITS)

    def all_edits(self) -> list[Edit]:
        """The engine's edits."""
        return [given.edit() for given in self.edits]
