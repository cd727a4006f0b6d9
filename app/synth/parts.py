"""What was drawn, by what is computed of a micro-batch and by op type."""

from app.synth.drawn import Drawn
from app.synth.schedules.schedule import Part
from app.trace.window import Floats


def durations(drawn: Drawn) -> dict[Part, Floats]:
    """Of computations, [stages, chunks, micro-batches, steps, dp ranks] seconds."""
    found = {Part.FORWARD: drawn.forward_s, Part.BACKWARD: drawn.backward_s}
    if drawn.weight_share is not None:
        found[Part.BACKWARD_WEIGHT] = weight_s = drawn.backward_s * drawn.weight_share
        found[Part.BACKWARD_INPUT] = drawn.backward_s - weight_s
    return found


def delays(drawn: Drawn) -> dict[str, Floats]:
    """By op type, [stages, chunks, micro-batches, ...] or [stages, chunks, ...]."""
    found = {
        Part.FORWARD.value: drawn.forward_delay_s,
        Part.BACKWARD.value: drawn.backward_delay_s,
        Part.BACKWARD_INPUT.value: drawn.backward_delay_s,
        **drawn.p2p_delay_s,
        **drawn.once_delay_s,
    }
    if drawn.weight_delay_s is not None:
        found[Part.BACKWARD_WEIGHT.value] = drawn.weight_delay_s
    return found
