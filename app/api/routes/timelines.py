"""Timelines: what the workers of a closed window did, for a trace viewer."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.deps import JobKey, Responses, ServiceDep, refusals
from app.api.download import Download
from app.api.fields import WindowId
from app.engine.replays import WindowReplay
from app.engine.timeline.choice import Choice, choose, num_slices
from app.engine.timeline.writer import written
from app.errors import TooLarge
from app.trace.names import plain

# A file of some 35 MB, made in a few seconds; a viewer is slow with more.
MAX_SLICES = 1_000_000
GZIP = "application/gzip"

router = APIRouter(tags=["windows"])

Named = Annotated[str | None, Query(max_length=4096, pattern=r"^[0-9,\-]*$")]

_FILE: Responses = {
    200: {
        "description": "Chrome trace events, gzip-compressed: open the file in a trace viewer.",
        "content": {GZIP: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get(
    "/jobs/{job_id}/windows/{window}/timeline",
    operation_id="get_window_timeline",
    summary="Download a timeline of some steps and workers",
    response_class=Response,
    responses={**_FILE, **refusals(404, 409, 413)},
)
def get_window_timeline(
    job_id: JobKey,
    window: WindowId,
    service: ServiceDep,
    steps: Annotated[Named, Query(description="As in 3,5-9; left out: the slowest step.")] = None,
    workers: Annotated[
        str | None,
        Query(
            max_length=4096,
            pattern=r"^[0-9,/*]*$",
            description="dp rank / stage, as in 0/1,3/* (* is all); left out: all workers.",
        ),
    ] = None,
    ranks: Annotated[Named, Query(description="Workers by global rank, as in 0,8-11.")] = None,
    runs: Annotated[
        str | None,
        Query(
            max_length=64,
            description="Some of recorded,simulated,ideal; left out: all three.",
        ),
    ] = None,
) -> Response:
    """The recorded, the simulated and the ideal run on one clock, one track a stream.

    At most 1,000,000 operations, each counted once for every run.
    """
    replay = service.replays.get(job_id, window)
    choice = choose(replay, steps=steps, workers=workers, ranks=ranks, runs=runs)
    _check_size(replay, choice)
    return Download(
        written(replay, choice),
        service.replays.at_download,
        name=f"{plain(job_id)}-{replay.window.id}-timeline.json.gz",
        media_type=GZIP,
    )


def _check_size(replay: WindowReplay, choice: Choice) -> None:
    wanted = num_slices(replay, choice)
    if wanted > MAX_SLICES:
        raise TooLarge(
            f"that timeline has {wanted:,} operations, and at most {MAX_SLICES:,} are sent: choose "
            "fewer with steps=3, workers=0/* (a dp rank) or 0/1 (a worker), or runs=recorded"
        )
