"""ZB-H1: backwards are split, and what nobody waits for fills the gaps (Qi et al., ICLR 2024)."""

from typing_extensions import override

from app.synth.schedules.one_f_one_b import OneFOneB
from app.synth.schedules.schedule import Part, Schedule, Work


class ZeroBubble(Schedule):
    """1F1B; stage p computes its weights' gradients p micro-batches after their inputs'."""

    name = "zero-bubble"

    @override
    def order(
        self, stage: int, *, pp_size: int, num_microbatches: int, num_chunks: int
    ) -> list[Work]:
        whole = OneFOneB().order(
            stage, pp_size=pp_size, num_microbatches=num_microbatches, num_chunks=num_chunks
        )
        order: list[Work] = []
        owed: list[Work] = []
        for work in whole:
            if work.part is Part.FORWARD:
                order.append(work)
                continue
            order.append(work._replace(part=Part.BACKWARD_INPUT))
            owed.append(work._replace(part=Part.BACKWARD_WEIGHT))
            if len(owed) > stage:
                order.append(owed.pop(0))
        return order + owed
