"""The meta file beside a published trace: the job's name, parallel sizes and own op types."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from app.errors import InvalidRequest, InvalidTrace
from app.trace import ops
from app.trace.job import Job, Parallelism
from app.trace.ops import BUILT_IN, OpTypes
from app.yaml_events import LOADER, yaml_events

_SIZES = ("dp_size", "pp_size", "tp_size", "vpp_size", "dsp_size", "ep_size")
_USUAL = dict.fromkeys(("tp_size", "vpp_size", "dsp_size", "ep_size"), 1)
_MAX_DEPTH = 16
_MAX_BYTES = 1 << 20
_MAX_PLAIN_CHARS = 400  # YAML 1.1 reads 1:1:1:... as one number


@dataclass(frozen=True, slots=True)
class TraceMeta:
    """Content of a meta file; `name` is None without a trial name, `run_id` without a run."""

    name: str | None
    parallelism: Parallelism
    op_types: OpTypes = BUILT_IN
    run_id: int | str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


def beside(trace_path: Path) -> Path | None:
    """The meta file beside a trace, if there is one."""
    path = usual_path(trace_path)
    return path if path.is_file() else None


def usual_path(trace_path: Path) -> Path:
    """Path of a trace's meta file: meta-NAME.yaml beside trace-NAME.parquet."""
    return trace_path.with_name(f"meta-{trace_name(trace_path)}.yaml")


def trace_name(trace_path: Path) -> str:
    """NAME of trace-NAME.parquet."""
    return trace_path.stem.removeprefix("trace-")


def load(path: Path) -> TraceMeta:
    """The meta file's content; raises InvalidTrace if it or a size in it is missing or wrong."""
    content = _parsed(path)
    sizes = {name: _size(path, name, content.get(name, _USUAL.get(name))) for name in _SIZES}
    try:
        parallelism = Parallelism(**sizes)
        op_types = _op_types(content.get("op_types"))
    except InvalidRequest as error:
        raise InvalidTrace(f"{path.name}: {error}") from error
    world_size = _size(path, "world_size", content.get("world_size", parallelism.world_size))
    if world_size != parallelism.world_size:
        raise InvalidTrace(
            f"{path.name}: world_size is {world_size}, but dp * pp * tp * dsp is "
            f"{parallelism.world_size}: correct the sizes"
        )
    name, run_id = content.get("trial_name"), content.get("run_id")
    labels = content.get("labels")
    if not isinstance(labels, dict) or not all(
        isinstance(value, str | int | float) for value in labels.values()
    ):
        labels = {}
    return TraceMeta(
        None if name is None else str(name),
        parallelism,
        op_types,
        run_id if isinstance(run_id, int | str) else None,
        {str(key): str(value) for key, value in labels.items()},
    )


def text(job: Job, *, run_id: int | str = 0, labels: Mapping[str, str] | None = None) -> str:
    """Text of a job's meta file."""
    content = {
        "trial_name": job.name,
        "run_id": run_id,
        **{name: getattr(job.parallelism, name) for name in _SIZES},
        "world_size": job.parallelism.world_size,
        "op_types": ops.describe_op_types(job.op_types) or None,
        "labels": dict(labels or {}) or None,
    }
    written: str = yaml.safe_dump(
        {key: value for key, value in content.items() if value is not None}
    )
    return written


def _parsed(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            written = file.read(_MAX_BYTES + 1)
        content = _content(written.decode())
    except OSError as error:
        raise InvalidTrace(
            f"{path}: cannot be read ({error.strerror}): name a file that you may read"
        ) from error
    except Exception as error:  # PyYAML's own, and any that its constructors raise
        raise InvalidTrace(f"{path.name}: is no YAML: write lines like 'dp_size: 4'") from error
    if not isinstance(content, dict):
        raise InvalidTrace(f"{path.name}: want lines like 'dp_size: 4'")
    return content


def _content(text: str) -> Any:
    """The value of a text, None for texts that take PyYAML a long time."""
    for event in yaml_events(text, max_depth=_MAX_DEPTH):
        if isinstance(event, yaml.AliasEvent):  # a few of them may stand for a huge value
            return None
        is_plain = isinstance(event, yaml.ScalarEvent) and event.implicit[0]
        if is_plain and len(event.value) > _MAX_PLAIN_CHARS:
            return None
    return None if len(text) > _MAX_BYTES else yaml.load(text, Loader=LOADER)  # noqa: S506, safe


def _op_types(described: object) -> OpTypes:
    if not isinstance(described, list | None):
        raise InvalidRequest("op_types is no list: write lines like '- name: moe-all-to-all'")
    return ops.parse_op_types(described or [])


def _size(path: Path, name: str, size: object) -> int:
    if size is None:
        raise InvalidTrace(f"{path.name}: {name} is missing: add it")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InvalidTrace(f"{path.name}: {name} is {size!r:.40}: give a whole number, 1 or more")
    return size
