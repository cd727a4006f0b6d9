"""Which causes are known, and how is each detected? A class a cause, in files of one idea.

Read `slow_worker.py` first, as an example. A file needs no entry elsewhere.
Imported by: diagnosis.
"""

from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules

from app.diagnosis.detector import Detector
from app.result.causes import CAUSES


def all_detectors(*, by_arrivals: bool) -> tuple[Detector, ...]:
    """One of each class in this folder that names a cause, in the order of CAUSES.

    Raises:
        ValueError: a cause has no row in CAUSES.
    """
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    order = list(CAUSES)
    detectors = [
        kind()
        for kind in _subclasses()
        if "cause" in vars(kind) and kind.by_arrivals is by_arrivals
    ]
    return tuple(sorted(detectors, key=lambda detector: order.index(detector.cause)))


def _subclasses() -> list[type[Detector]]:
    """Of any depth, in this folder."""
    kinds = Detector.__subclasses__()
    for kind in kinds:  # what is appended comes in its turn
        kinds += kind.__subclasses__()
    own = dict.fromkeys(kind for kind in kinds if kind.__module__.startswith(f"{__name__}."))
    return [kind for kind in own if not isabstract(kind)]
