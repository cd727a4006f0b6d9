"""The made job that the options of `paceline simulate` describe."""

from dataclasses import dataclass, replace

from app.errors import InvalidRequest
from app.synth.costs import Costs
from app.synth.model import Model
from app.synth.network import Network
from app.synth.noise import NOISES
from app.synth.odd_steps import sampled
from app.synth.schedules.known import SCHEDULES
from app.synth.schedules.schedule import Schedule
from app.trace.job import Parallelism

# An operation of a day is the longest that a worker may send; a fault makes it longer still.
_LONGEST_S = 3_600.0


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What is said of the model; all None: computations take their usual 20 and 40 ms."""

    layers: str | None
    hidden: int | None
    seq_len: int | None

    @property
    def is_given(self) -> bool:
        """Whether anything is said."""
        return (self.layers, self.hidden, self.seq_len) != (None, None, None)

    def model(self) -> Model:
        """The model, with what is not said as usual.

        Raises:
            InvalidRequest: the layers are no numbers.
        """
        model = Model()
        if self.layers is not None:
            counts = _counts(self.layers)
            each = () if len(counts) == 1 else counts
            model = replace(model, num_layers=sum(counts), layers=each)
        if self.hidden is not None:
            model = replace(model, hidden_size=self.hidden)
        if self.seq_len is not None:
            model = replace(model, seq_len=self.seq_len)
        return model


def costs(parallelism: Parallelism, model: ModelOptions, noise: float, tail: str) -> Costs:
    """What operations cost.

    Raises:
        InvalidRequest: there is no such tail, or the model does not fit the job.
    """
    if tail not in NOISES:
        raise InvalidRequest(f"--tail {tail}: want {', '.join(NOISES)}")
    usual = replace(Costs(), noise=noise, tail=NOISES[tail]())
    if not model.is_given:
        return usual
    found = model.model().costs(parallelism, Network(), usual)
    if found.backward_s > _LONGEST_S:
        raise InvalidRequest(
            f"a micro-batch would take {found.backward_s:,.0f} s to go back through a stage: "
            "give a smaller model, or more stages or tensor-parallel ranks"
        )
    return found


def schedule_named(name: str | None, num_chunks: int) -> Schedule:
    """The schedule; left out, the one that suits the number of chunks.

    Raises:
        InvalidRequest: there is none of this name.
    """
    name = name or ("interleaved" if num_chunks > 1 else "1f1b")
    if name not in SCHEDULES:
        raise InvalidRequest(f"--schedule {name}: want {', '.join(SCHEDULES)}")
    return SCHEDULES[name]


def steps_of(num_steps: int, windows: str | None) -> list[int]:
    """The steps that are recorded: all, or those of windows like 40/400.

    Raises:
        InvalidRequest: the windows are not two numbers.
    """
    if windows is None:
        return list(range(num_steps))
    try:
        recorded, every = (int(part) for part in windows.split("/"))
    except ValueError as error:
        raise InvalidRequest(
            f"--sampled {windows}: want RECORDED/EVERY, two whole numbers as in 40/400"
        ) from error
    return sampled(num_steps, recorded=recorded, every=every)


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidRequest(
            f"--layers {text}: want the number of layers, or of each chunk as in 17,16,16,15"
        ) from error
