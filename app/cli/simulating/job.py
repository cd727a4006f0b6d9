"""Builds the simulated job from the options of `paceline simulate`, and limits its size."""

from dataclasses import dataclass, replace

from app.errors import InvalidRequest
from app.synth.costs import OperationCosts
from app.synth.job import SimulatedJob
from app.synth.model import NetworkModel, TransformerModel
from app.synth.noise import NOISES
from app.synth.normal_variation import sampled_steps
from app.synth.schedules import SCHEDULES, Schedule
from app.trace.job import Parallelism

# The server accepts operations of up to a day; faults lengthen them.
_MAX_S = 3_600.0


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options that describe the model; with all None, computations take 20 and 40 ms."""

    layers: str | None
    hidden: int | None
    seq_len: int | None

    @property
    def is_given(self) -> bool:
        """Whether any option is given."""
        return (self.layers, self.hidden, self.seq_len) != (None, None, None)

    def model(self) -> TransformerModel:
        """The model, with defaults for options that are not given."""
        model = TransformerModel()
        if self.layers is not None:
            counts = _counts(self.layers)
            each = () if len(counts) == 1 else counts
            model = replace(model, num_layers=sum(counts), layers=each)
        if self.hidden is not None:
            model = replace(model, hidden_size=self.hidden)
        if self.seq_len is not None:
            model = replace(model, seq_len=self.seq_len)
        return model


def costs(parallelism: Parallelism, model: ModelOptions, noise: float, tail: str) -> OperationCosts:
    """Mean operation times, with noise."""
    if tail not in NOISES:
        raise InvalidRequest(f"--tail {tail}: want {', '.join(NOISES)}")
    usual = replace(OperationCosts(), noise=noise, tail=NOISES[tail]())
    if not model.is_given:
        return usual
    found = model.model().costs(parallelism, NetworkModel(), usual)
    if found.backward_s > _MAX_S:
        raise InvalidRequest(
            f"a micro-batch would take {found.backward_s:,.0f} s to go back through a stage: "
            "give a smaller model, or more stages or tensor-parallel ranks"
        )
    return found


def schedule_named(name: str | None, num_chunks: int) -> Schedule:
    """A schedule by name; by default the one that suits the number of chunks."""
    name = name or ("interleaved" if num_chunks > 1 else "1f1b")
    if name not in SCHEDULES:
        raise InvalidRequest(f"--schedule {name}: want {', '.join(SCHEDULES)}")
    return SCHEDULES[name]


def recorded_steps(num_steps: int, windows: str | None) -> list[int]:
    """Recorded steps: all, or for 40/400 the first 40 of every 400."""
    if windows is None:
        return list(range(num_steps))
    try:
        recorded, every = (int(part) for part in windows.split("/"))
    except ValueError as error:
        raise InvalidRequest(
            f"--sampled {windows}: want RECORDED/EVERY, two whole numbers as in 40/400"
        ) from error
    return sampled_steps(num_steps, recorded=recorded, every=every)


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidRequest(
            f"--layers {text}: want the number of layers, or of each chunk as in 17,16,16,15"
        ) from error


# At 100 bytes each, more would not fit into a workstation's memory.
MAX_OPS = 100_000_000


def refuse_too_large(simulated: SimulatedJob, steps: int) -> None:
    """Check that the steps fit into memory."""
    workers = simulated.parallelism.num_workers
    num_ops = (
        steps * workers * (6 * simulated.num_microbatches * simulated.parallelism.vpp_size + 7)
    )
    if num_ops > MAX_OPS:
        raise InvalidRequest(
            f"this would be about {num_ops:,} operations, more than {MAX_OPS:,}: "
            "ask for fewer steps or workers"
        )
