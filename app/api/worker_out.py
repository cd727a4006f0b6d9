"""A worker as the API names it."""

from app.api.fields import Answer


class WorkerOut(Answer):
    """Its place in the job."""

    dp_rank: int
    stage: int

    @classmethod
    def of(cls, worker: tuple[int, int]) -> "WorkerOut":
        """The place (dp rank, stage)."""
        dp_rank, stage = worker
        return cls(dp_rank=dp_rank, stage=stage)
