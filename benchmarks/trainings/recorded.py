"""Recordings of runs that `--keep` has left: written, and analysed again without training."""

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.cli.trace_input import read_trace
from app.diagnosis.job_history import History
from app.monitor import analysed
from app.result.window_result import WindowResult
from benchmarks.trainings.cases import BY_NAME, Run
from benchmarks.trainings.served import ClosedWindow

TRUTH = "truth.json"


def keep(directory: Path, run: Run, windows: list[ClosedWindow], truth: dict[str, Any]) -> None:
    """Write a run's recording: of each window its operations, meta file and result; the truth.

    `paceline analyze trace-ID.parquet --meta meta-ID.yaml` analyses a window again, without what
    came before it.
    """
    folder = directory / run.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TRUTH).write_text(json.dumps(truth, indent=1))
    for window in windows:
        with zipfile.ZipFile(io.BytesIO(window.packed)) as archive:
            for each in archive.namelist():
                kind = "trace" if each.endswith(".parquet") else "meta"
                file = folder / f"{kind}-{window.name}{Path(each).suffix}"
                file.write_bytes(archive.read(each))
        result = json.dumps(window.result.as_json(), indent=1)
        (folder / f"result-{window.name}.json").write_text(result)


def runs(directory: Path, names: list[str]) -> Iterator[tuple[Run, list[WindowResult]]]:
    """Each recorded run of the cases of these names, and its windows' results by today's code.

    Not of tensor-parallel peers: trace files have no place for collectives inside groups.
    """
    for file in sorted(directory.glob(f"*/{TRUTH}")):
        truth = json.loads(file.read_text())
        case = BY_NAME[truth["case"]]
        if case.name in names and case.way != "peers":
            number = int(file.parent.name.rpartition("-")[2])
            yield Run.of(case, number, truth["seed"]), results(file.parent)


def results(folder: Path) -> list[WindowResult]:
    """Of all windows of a run, oldest first, each with the history of those before it."""
    history, found = History(), []
    for trace in sorted(folder.glob("trace-*.parquet"), key=_first_step):
        name = trace.stem.removeprefix("trace-")
        _, result, recent = analysed(read_trace(trace, folder / f"meta-{name}.yaml"), history)
        if recent is not None:
            history = history.extended(recent)
        found.append(result)
    return found


def _first_step(trace: Path) -> int:
    return int(trace.stem.rpartition("-")[2])
