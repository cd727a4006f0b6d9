"""What the options of `paceline simulate` describe: the job's model, schedule, steps and faults.

A fault reads slow-worker:dp=3,stage=1,factor=1.6,from=20.
"""

import difflib
import inspect
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Any, get_type_hints

from app.errors import InvalidRequest
from app.synth.costs import NetworkModel, OperationCosts, TransformerModel
from app.synth.faults.fault import Fault, FaultSteps, WorkerPlaces
from app.synth.faults.registry import FAULTS
from app.synth.job import EVENTS, JobEvent, SimulatedJob, SimulatedRun, simulated_runs
from app.synth.noise import NOISES
from app.synth.normal_variation import sampled_steps
from app.synth.schedules import SCHEDULES, Schedule
from app.trace.job import Parallelism

# Keys that are shorter than the field names.
_KEYS = {"dp_rank": "dp", "dp_size": "dp", "slowdown": "factor", "at_step": "at"}
_WHEN = {"from": "first_step", "for": "num_steps"}
_TYPE_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "yes or no",
    str: "a name",
    str | None: "a name",
    WorkerPlaces: "workers as DP/STAGE+DP/STAGE",
}
_BOOLEANS = {"yes": True, "no": False}
_MEANING_OF_ALL: dict[Any, Any] = {str | None: None, WorkerPlaces: ()}
_ALL = "all"
# Fields that are slowdown factors.
_TIMES = {"slowdown", "forward", "backward"}


@dataclass(frozen=True, slots=True)
class FaultSetting:
    """One key of a fault; `default` is None if it is required."""

    key: str
    field: str
    type: Any
    default: str | None


def parse_fault(text: str) -> Fault | JobEvent:
    """Parse one --fault: a fault, or an event such as a restart."""
    name, _, given = text.partition(":")
    kind = (FAULTS | EVENTS).get(name)
    if kind is None:
        near = difflib.get_close_matches(name, (*FAULTS, *EVENTS), n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise InvalidRequest(
            f"--fault {text}: there is no fault {name!r}: {meant}--list-faults shows all"
        )
    try:
        return _fault_of(kind, _given_values(given))
    except InvalidRequest as error:
        raise InvalidRequest(f"--fault {text}: {error}") from error


def fault_settings(kind: type[Fault | JobEvent]) -> list[FaultSetting]:
    """The keys of a fault, required ones first."""
    hints = get_type_hints(kind)
    settings = [
        FaultSetting(_option_key(field.name), field.name, hints[field.name], _default(field))
        for field in fields(kind)
        if field.name != "when"
    ]
    return sorted(settings, key=lambda setting: setting.default is not None)


# Values that show what a required key takes; they fit a job of the default size.
_EXAMPLE_VALUES = {
    "dp": "3",
    "stage": "1",
    "factor": "1.6",
    "host": "host-001",
    "share": "0.25",
    "rate": "0.1",
    "pause-s": "0.3",
    "delay-s": "0.2",
    "stall-s": "0.5",
    "stop-s": "5",
    "every-steps": "4",
    "workers": "1/0+2/1",
    "at": "8",
    "lost-steps": "2",
}
_EXAMPLE_OF_TYPE = {int: "2", float: "1.5", bool: "yes"}


def fault_example(kind: type[Fault | JobEvent]) -> str:
    """An option with the required keys of a fault: --fault slow-host:host=host-001,factor=1.6."""
    keys = ",".join(
        f"{setting.key}="
        + (_EXAMPLE_VALUES.get(setting.key) or _EXAMPLE_OF_TYPE.get(setting.type, "all"))
        for setting in fault_settings(kind)
        if setting.default is None
    )
    return f"--fault {kind.name}" + f":{keys}" * bool(keys)


def _option_key(field: str) -> str:
    """A field's name on the command line."""
    return _KEYS.get(field, field.removeprefix("is_").replace("_", "-"))


def _fault_of(kind: type[Fault | JobEvent], given: dict[str, str]) -> Fault | JobEvent:
    known = {setting.key: setting for setting in fault_settings(kind)}
    values: dict[str, Any] = {}
    if issubclass(kind, Fault):
        steps = {
            field: _value(key, int, given.pop(key)) for key, field in _WHEN.items() if key in given
        }
        values["when"] = FaultSteps(**steps)
    if unknown := [key for key in given if key not in known]:
        also = list(_WHEN) if issubclass(kind, Fault) else []
        raise InvalidRequest(f"there is no {unknown[0]!r}, only {', '.join((*known, *also))}")
    for setting in known.values():
        if setting.key in given:
            values[setting.field] = _value(setting.key, setting.type, given[setting.key])
        elif setting.default is None:
            value = _TYPE_NAMES[setting.type]
            raise InvalidRequest(f"{setting.key} is missing, {value}, as in {fault_example(kind)}")
    fault = kind(**values)
    times = [getattr(fault, field.name) for field in fields(fault) if field.name in _TIMES]
    if times and all(factor == 1.0 for factor in times):
        raise InvalidRequest("a factor of 1 changes nothing: give another number")
    return fault


def _given_values(text: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, has_value, value = (piece.strip() for piece in part.partition("="))
        if key in given:
            raise InvalidRequest(f"{key} is given twice: give it once")
        given[key] = value if has_value else "yes"
    return given


def _value(key: str, type_: Any, text: str) -> Any:
    if text == _ALL and type_ in _MEANING_OF_ALL:
        return _MEANING_OF_ALL[type_]
    try:
        if type_ is bool:
            return _BOOLEANS[text]
        if type_ == WorkerPlaces:
            return tuple(map(_worker, text.split("+")))
        return text if type_ in (str, str | None) else type_(text)
    except (KeyError, ValueError) as error:
        raise InvalidRequest(f"{key} is {text!r}: want {_TYPE_NAMES[type_]}") from error


def _worker(text: str) -> tuple[int, int]:
    dp_rank, stage = map(int, text.split("/"))
    return dp_rank, stage


def _default(field: "Field[Any]") -> str | None:
    if field.default is MISSING:
        return None
    if isinstance(field.default, bool):
        return "yes" if field.default else "no"
    return _ALL if field.default in (None, ()) else str(field.default)


@dataclass(frozen=True, slots=True)
class ParsedFaults:
    """Faults with the text of their options, and the events of the job."""

    by_text: tuple[tuple[str, Fault], ...]
    events: tuple[JobEvent, ...]

    def runs(self, job: SimulatedJob, steps: Sequence[int]) -> list[SimulatedRun]:
        """The job's runs, after checking that every fault fits each of them."""
        attempts = simulated_runs(job, steps, self.events)
        for text, fault in self.by_text:
            try:
                if fault.when.first_step > steps[-1]:
                    raise InvalidRequest(
                        f"it starts after the last step {steps[-1]}: give an earlier from, or more "
                        "--steps"
                    )
                for attempt in attempts:
                    fault.check(attempt.job.world)
            except InvalidRequest as error:
                raise InvalidRequest(f"--fault {text}: {error}") from error
        return attempts


def parse_faults(texts: Sequence[str]) -> ParsedFaults:
    """Parse all --fault options."""
    parsed = [(text, parse_fault(text)) for text in texts]
    return ParsedFaults(
        by_text=tuple((text, kind) for text, kind in parsed if isinstance(kind, Fault)),
        events=tuple(kind for _, kind in parsed if isinstance(kind, JobEvent)),
    )


def fault_list() -> str:
    """Every fault with its cause, one sentence and its keys."""
    kinds: list[type[Fault | JobEvent]] = [*FAULTS.values(), *EVENTS.values()]
    last = "Every fault but the last two also takes from=STEP and for=STEPS. Default: all steps."
    return "\n".join([*map(_fault_lines, kinds), last])


def _fault_lines(kind: type[Fault | JobEvent]) -> str:
    """Name, cause and sentence; an example that works as it is, and the keys with defaults."""
    sentence = (inspect.getdoc(kind) or "").split("\n")[0]
    optional = ",".join(
        f"{setting.key}={setting.default}"
        for setting in fault_settings(kind)
        if setting.default is not None
    )
    usage = fault_example(kind) + (f"  (also: {optional})" if optional else "")
    return f"{kind.name} (cause: {kind.cause or 'none'})\n  {sentence}\n  {usage}\n"


# The server accepts operations of up to a day; faults lengthen them.
_MAX_S = 3_600.0


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options that describe the model; with all None, computations take 20 and 40 ms."""

    layers: str | None
    hidden: int | None
    seq_len: int | None

    def model(self) -> TransformerModel:
        """The model, with defaults for options that are not given."""
        sizes = {"hidden_size": self.hidden, "seq_len": self.seq_len}
        given: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
        if self.layers is not None:
            counts = _counts(self.layers)
            given |= {"num_layers": sum(counts), "layers": counts if len(counts) > 1 else ()}
        return TransformerModel(**given)


def costs(parallelism: Parallelism, model: ModelOptions, noise: float, tail: str) -> OperationCosts:
    """Mean operation times, with noise."""
    if tail not in NOISES:
        raise InvalidRequest(f"--tail {tail}: want {', '.join(NOISES)}")
    usual = replace(OperationCosts(), noise=noise, tail=NOISES[tail]())
    if (model.layers, model.hidden, model.seq_len) == (None, None, None):
        return usual
    model_costs = model.model().costs(parallelism, NetworkModel(), usual)
    if model_costs.backward_s > _MAX_S:
        raise InvalidRequest(
            f"a micro-batch would take {model_costs.backward_s:,.0f} s to go back through a stage: "
            "give a smaller model, or more stages or tensor-parallel ranks"
        )
    return model_costs


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
    chunks = simulated.num_microbatches * simulated.parallelism.vpp_size
    num_ops = steps * workers * (6 * chunks + 7)
    if num_ops > MAX_OPS:
        raise InvalidRequest(
            f"this would be about {num_ops:,} operations, more than {MAX_OPS:,}: "
            "ask for fewer steps or workers"
        )
