"""Advice about a closed window: each fix with its predicted gain, and what to paste."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Query
from msgspec.structs import asdict
from pydantic import BaseModel, Field

from app.advice.advise import Advice, advice_record, advise
from app.advice.facts import (
    MAX_LAYERS,
    MAX_LAYOUT_CHARS,
    MAX_LIST_CHARS,
    MAX_MINUTES,
    MAX_MTBF_HOURS,
    MAX_TOKENS,
    MIN_POSITIVE,
    Facts,
    Scheduler,
    facts_of,
)
from app.api.http.fields import ChosenSteps, ResponseModel, WindowId
from app.api.routes.dependencies import ApiRouter, JobKey, ServiceDep
from app.api.routes.windows.what_if_edits import EditIn
from app.api.service.replays import WindowKey, window_key
from app.engine.replays import prepare
from app.monitor import advice_case, stored_advice_case
from app.trace.window import parse_step_ranges

router = ApiRouter("windows")


class PasteOut(ResponseModel):
    """Text to paste."""

    label: str = Field(description="Where the text goes, such as the tool that takes it.")
    text: str


class NeedOut(ResponseModel):
    """Something unknown that would make a fix possible or complete."""

    fact: str | None = Field(
        description="The fact that says it, as in the query; null if only the recorder can tell."
    )
    text: str = Field(examples=["the model's layers"])


class FixOut(ResponseModel):
    """A fix with its prediction.

    All steps are simulated, so launch delays are in none of the times.
    """

    fix: str = Field(description="Name of the fix.", examples=["resplit-stages"])
    cause: str | None = Field(
        description="Cause of the finding that the fix removes; null if it removes none."
    )
    title: str = Field(examples=["Give the stages 13/11/9/3 layers, not 9/9/9/9"])
    step_s: float = Field(description="Predicted mean step time with the fix, in seconds.")
    step_range_s: list[float] = Field(
        description="Bounds of the predicted step time in seconds, the shorter one first."
    )
    step_s_before: float = Field(description="Mean step time without the fix, in seconds.")
    speed_up: float = Field(description="`step_s_before` divided by `step_s`.")
    gpu_hours_per_day: float = Field(
        description="GPU-hours that a day of training needs less with the fix."
    )
    gpu_hours_per_day_range: list[float] = Field(
        description="Bounds of the GPU-hours a day, the smaller one first."
    )
    confidence: float = Field(
        description="Confidence of the prediction, 0 to 1: that of its finding, less where the "
        "replay differs from the record."
    )
    risk: str = Field(description="What the fix costs or may break.")
    microbatches: int | None = Field(
        description="Micro-batches of a replica's step with the fix; null: as before."
    )
    stops_job: bool = Field(description="Whether the fix takes a restart.")
    stop_minutes: float | None = Field(
        description="Minutes of training that a restart costs; null if they were not given."
    )
    pays_after_minutes: float | None = Field(
        description="Minutes of training after which the fix has won back its restart; null if "
        "the cost of a restart is not known."
    )
    lost_minutes: float | None = Field(
        description="Minutes of training that the fix would have saved since the onset of its "
        "cause; null without a cause."
    )
    lost_is_at_least: bool = Field(
        description="Whether more was lost: the cause began before the record, so minutes count "
        "from the window's first step."
    )
    pays_now: bool | None = Field(
        description="Whether the cause has cost as much as a restart does; null if unknown."
    )
    paste: list[PasteOut] = Field(description="Commands, options or settings, ready to paste.")
    needs: list[NeedOut] = Field(description="What would complete the fix.")
    what_if: list[EditIn] | None = Field(
        description="The fix as edits of a what-if question; null where edits cannot express it."
    )
    can_be_tracked: bool = Field(
        description="Whether later windows can show that the fix was made, so that its prediction "
        "can be followed."
    )


class FixesTogetherOut(ResponseModel):
    """The best set of fixes, simulated together: gains do not add up."""

    fixes: list[str] = Field(description="Names of the fixes in the set.")
    step_s: float = Field(description="Predicted mean step time with all of them, in seconds.")
    step_s_before: float = Field(description="Mean step time without them, in seconds.")
    speed_up: float = Field(description="`step_s_before` divided by `step_s`.")
    gpu_hours_per_day: float = Field(
        description="GPU-hours that a day of training needs less with all of them."
    )


class FixNotOfferedOut(ResponseModel):
    """A fix that is not advised for this window."""

    fix: str = Field(description="Name of the fix.")
    reason: str = Field(description="Why the fix is not advised.")
    needs: list[NeedOut] = Field(description="With what the fix could be predicted.")


class AdviceOut(ResponseModel):
    """What to do in a window: fixes of its causes first, then others, the largest gains first."""

    window: str
    steps: list[int] = Field(description="The steps that the predictions are of.")
    withheld: str | None = Field(
        description="The reason why nothing can be advised; null if something could be."
    )
    fixes: list[FixOut]
    together: FixesTogetherOut | None = Field(
        description="The best set of two or three fixes; null if none beats the best single fix."
    )
    not_offered: list[FixNotOfferedOut]


class FactsAsked(BaseModel):
    """What only the job's owner knows."""

    layers: int | None = Field(
        None,
        ge=1,
        le=MAX_LAYERS,
        description="Transformer layers of the model, the same number on each stage.",
    )
    layout: str | None = Field(
        None,
        max_length=MAX_LAYOUT_CHARS,
        description="Layers of each stage where they differ. Give either this or `layers`.",
        examples=["9,9,9,6"],
    )
    scheduler: Scheduler | None = Field(
        None, description="What runs the job: only its commands are returned."
    )
    restart_minutes: float | None = Field(
        None, ge=0, le=MAX_MINUTES, description="Minutes from stopping the job to its next step."
    )
    checkpoint_minutes: float | None = Field(
        None,
        ge=0,
        le=MAX_MINUTES,
        description="Minutes between two checkpoints. Half of them are trained again after a "
        "restart.",
    )
    checkpoint_save_minutes: float | None = Field(
        None,
        ge=MIN_POSITIVE,
        le=MAX_MINUTES,
        description="Minutes that writing a checkpoint takes. With `mtbf_hours` it gives the "
        "best time between checkpoints, for jobs without a fixed one.",
    )
    mtbf_hours: float | None = Field(
        None,
        ge=MIN_POSITIVE,
        le=MAX_MTBF_HOURS,
        description="Mean hours between failures of the job.",
    )
    expert_loads: str | None = Field(
        None,
        max_length=MAX_LIST_CHARS,
        description="Tokens of each expert of a layer, in the order of the experts.",
        examples=["812,40,95.5,120"],
    )
    expert_share: float | None = Field(
        None, ge=0, le=1, description="Share of forward and backward that the experts take."
    )
    document_lengths: str | None = Field(
        None,
        max_length=MAX_LIST_CHARS,
        description="Tokens of the data set's documents, in the order of loading.",
        examples=["4096,312,78"],
    )
    max_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="Tokens that a micro-batch may have, by memory."
    )


async def facts_asked(asked: Annotated[FactsAsked, Query()]) -> Facts:
    """The facts in the query.

    Raises:
        InvalidRequest: layers are given twice, or a list is no list of numbers.
    """
    return facts_of(**dict(asked))


@router.get(
    "/jobs/{job_id}/windows/{window}/advice",
    summary="Get fixes for a window's causes, with predicted gains",
    response_model_exclude_unset=True,
)
def get_advice(
    job_id: JobKey,
    window: WindowId,
    service: ServiceDep,
    facts: Annotated[Facts, Depends(facts_asked)],
    steps: ChosenSteps = None,
) -> AdviceOut:
    """Simulates the steps of a closed window with each fix that applies (docs/advice.md).

    `latest` is the newest closed window of the current run. The fixes are those of the window's
    findings; with `steps`, the chosen steps are diagnosed by themselves. Facts that no recording
    has are taken from the query, never guessed: without them `needs` says what a fix lacks.
    """
    with service.store.read() as conn:
        key = window_key(conn, job_id, window)
    result = service.results.get(service.store, job_id, key.window_id)
    if not result.steps:
        skipped = result.skipped_steps
        reason = f" (step {skipped[0].step}: {skipped[0].reason})" if skipped else ""
        withheld = f"the window has no step that can be replayed{reason}"
        return _answer(key, [], Advice((), (), facts, withheld=withheld))
    numbers = None if steps is None else parse_step_ranges(steps, result.steps)

    def ask() -> AdviceOut:
        replay = service.replays.get(job_id, key.window_id)
        case = stored_advice_case(replay, result, facts)
        if numbers is not None:  # these steps are diagnosed by themselves
            case = advice_case(prepare(replay.window.only(numbers)), facts)
        return _answer(key, case.replay.steps, advise(case))

    answer: AdviceOut = service.answers.get(("advice", key, numbers, facts), ask)
    return answer


def _answer(key: WindowKey, steps: Sequence[int], advice: Advice) -> AdviceOut:
    return AdviceOut(window=key.window_id, steps=list(steps), **asdict(advice_record(advice)))
