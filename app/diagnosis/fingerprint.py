"""What a person can check a diagnosis by: where does the variance lie, and where the loss?"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.features import Features
from app.engine.metrics import slowdown
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Variance of forward computations, as shares, and the loss by op type and stage.

    `between_stages`, `between_workers` (of one stage) and `within_workers` are None together,
    where nothing varies or no forward computation is one that every stage has. `optype_share`
    {type: share of the loss that is there with only this type as recorded}, adding up to 1 where
    anything is lost.
    `stage_share` [pp], the share won back by fixing each stage.
    """

    between_stages: float | None
    between_workers: float | None
    within_workers: float | None
    optype_share: dict[str, float]
    stage_share: tuple[float | None, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain numbers; unknown is None."""
        return {
            "variance": {
                "between_stages": self.between_stages,
                "between_workers": self.between_workers,
                "within_workers": self.within_workers,
            },
            "optype_share": self.optype_share,
            "stage_share": list(self.stage_share),
        }


def fingerprint(case: Case) -> Fingerprint:
    """One pass over the forward computations of the window."""
    return Fingerprint(
        *_shares(case.groups),
        optype_share=_optype_share(case),
        stage_share=tuple(case.report.stage_share),
    )


def _shares(groups: tuple[Features, ...]) -> tuple[float | None, float | None, float | None]:
    """Shares of all variance; groups are weighed by their operations."""
    parts = np.zeros(3)
    for group in groups:
        if group.forward is None or not group.forward.shared.size:
            return None, None, None
        parts += _sums_of_squares(group.forward.duration_s)
    if parts.sum() <= 0:
        return None, None, None
    between_stages, between_workers, within = (parts / parts.sum()).tolist()
    return between_stages, between_workers, within


def _sums_of_squares(duration_s: Floats) -> Floats:
    """[3] between stages, between workers, within a worker; of [dp, pp, items, steps]."""
    each = duration_s.shape[2] * duration_s.shape[3]
    of_worker = duration_s.mean(axis=(2, 3))
    of_stage = of_worker.mean(axis=0)
    between_stages = each * of_worker.shape[0] * ((of_stage - of_stage.mean()) ** 2).sum()
    between_workers = each * ((of_worker - of_stage) ** 2).sum()
    total = ((duration_s - of_stage.mean()) ** 2).sum()
    return np.array(
        [between_stages, between_workers, max(0.0, total - between_stages - between_workers)]
    )


def _optype_share(case: Case) -> dict[str, float]:
    step_s = case.report.optype_step_s
    slowdowns = slowdown(np.array(list(step_s.values())), case.report.ideal_s).tolist()
    lost = {name: max(0.0, each - 1.0) for name, each in zip(step_s, slowdowns, strict=True)}
    total = sum(lost.values())
    return {name: each / total if total > 0 else 0.0 for name, each in lost.items()}
