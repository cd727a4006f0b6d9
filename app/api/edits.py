"""A question's edits as JSON: what the API takes, and files that the command line reads."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from app.engine.questions.edits import (
    MAX_EDITS,
    MAX_FACTOR,
    MAX_SECONDS,
    Add,
    Change,
    Edit,
    Factor,
    FromWorker,
    Ideal,
    Selection,
    Set,
)
from app.trace.user_types import MAX_NAME

# As many as the largest job that we promise to take has workers.
MAX_LISTED = 16_384

_Index = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Step = Annotated[int, Field(ge=0, le=2**53)]
_Seconds = Annotated[FiniteFloat, Field(ge=0, le=MAX_SECONDS, description="Seconds.")]


class _Strict(BaseModel):
    """Nothing is guessed: unknown keys are refused, and text that looks like a number."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SelectIn(_Strict):
    """Which operations: those that all fields agree on; one that is left out agrees to all."""

    op_types: list[Annotated[str, Field(min_length=1, max_length=MAX_NAME)]] = Field(
        [],
        max_length=256,
        description="Op types, joint names (forward-pp-comm, backward-pp-comm), or the groups "
        "compute, pp-comm, dp-comm and comm.",
        examples=[["pp-comm"]],
    )
    stages: list[_Index] = Field([], max_length=MAX_LISTED)
    dp_ranks: list[_Index] = Field([], max_length=MAX_LISTED)
    workers: list[Annotated[list[_Index], Field(min_length=2, max_length=2)]] = Field(
        [], max_length=MAX_LISTED, description="Each as [dp rank, stage]."
    )
    steps: list[_Step] = Field([], max_length=MAX_LISTED)
    microbatches: list[_Index] = Field(
        [], max_length=MAX_LISTED, description="Of operations that carry one."
    )

    def selection(self) -> Selection:
        """The selection as the engine wants it."""
        return Selection(
            tuple(self.op_types),
            tuple(self.stages),
            tuple(self.dp_ranks),
            tuple((dp_rank, stage) for dp_rank, stage in self.workers),
            tuple(self.steps),
            tuple(self.microbatches),
        )


class IdealIn(_Strict):
    """What an operation of its type takes without stragglers."""

    kind: Literal["ideal"]

    def change(self) -> Change:
        """The change as the engine wants it."""
        return Ideal()


class FactorIn(_Strict):
    """So many times as long; nothing falls below 0 s."""

    kind: Literal["factor"]
    value: Annotated[FiniteFloat, Field(ge=0, le=MAX_FACTOR)]

    def change(self) -> Change:
        """The change as the engine wants it."""
        return Factor(self.value)


class AddIn(_Strict):
    """So many seconds longer, or shorter where negative; nothing falls below 0 s."""

    kind: Literal["add"]
    value: Annotated[FiniteFloat, Field(ge=-MAX_SECONDS, le=MAX_SECONDS, description="Seconds.")]

    def change(self) -> Change:
        """The change as the engine wants it."""
        return Add(self.value)


class SetIn(_Strict):
    """Exactly so many seconds."""

    kind: Literal["set"]
    value: _Seconds

    def change(self) -> Change:
        """The change as the engine wants it."""
        return Set(self.value)


class FromWorkerIn(_Strict):
    """What that worker's operation of the same type and number takes in the same step."""

    kind: Literal["from-worker"]
    dp_rank: _Index
    stage: _Index

    def change(self) -> Change:
        """The change as the engine wants it."""
        return FromWorker(self.dp_rank, self.stage)


ChangeIn = Annotated[IdealIn | FactorIn | AddIn | SetIn | FromWorkerIn, Field(discriminator="kind")]


class EditIn(_Strict):
    """Another duration for some operations; of those that meet peers, for the transfer."""

    select: SelectIn = SelectIn()
    change: ChangeIn


class QuestionIn(_Strict):
    """Edits, applied in order, each to what the ones before have left."""

    edits: list[EditIn] = Field(max_length=MAX_EDITS)

    def all_edits(self) -> list[Edit]:
        """The edits as the engine wants them."""
        return [Edit(edit.change.change(), edit.select.selection()) for edit in self.edits]
