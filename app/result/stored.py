"""How a result is stored: its figures by step, most of it for large jobs, apart from the rest."""

from msgspec import json
from msgspec.structs import asdict, replace

from app.result.arrivals import ArrivalsByStep
from app.result.window_result import FiguresByStep, WindowResult


class StoredByStep(FiguresByStep, kw_only=True, frozen=True):
    """Figures by step as they are stored, with those of arrivals."""

    waited_for_s: tuple[tuple[float | None, ...], ...] | None = None


_RESULT = json.Decoder(WindowResult)


def decode_result(text: bytes | str) -> WindowResult:
    """A result from its JSON."""
    return _RESULT.decode(text)


def split_by_step(result: WindowResult) -> tuple[WindowResult, StoredByStep | None]:
    """Split a result into what lists need, and its figures by step: most of it for large jobs.

    The figures are None where nothing was measured.
    """
    by_step, arrivals = result.per_step, result.arrivals
    rest = replace(result, per_step=None, arrivals=arrivals and replace(arrivals, per_step=None))
    if by_step is None:
        return rest, None
    of_ranks = None if arrivals is None else arrivals.per_step
    waited_for_s = None if of_ranks is None else of_ranks.waited_for_s
    return rest, StoredByStep(**asdict(by_step), waited_for_s=waited_for_s)


def join_by_step(result: WindowResult, by_step: StoredByStep | None) -> WindowResult:
    """The result with its figures by step, at `per_step` and `arrivals.per_step`."""
    if by_step is None:
        return result
    arrivals, waited_for_s = result.arrivals, by_step.waited_for_s
    if arrivals is not None and waited_for_s is not None:
        arrivals = replace(arrivals, per_step=ArrivalsByStep(waited_for_s=waited_for_s))
    shared = {name: getattr(by_step, name) for name in FiguresByStep.__struct_fields__}
    return replace(result, arrivals=arrivals, per_step=FiguresByStep(**shared))
