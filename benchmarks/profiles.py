"""Plain profiles: the slow rank named, step time and coverage of others' files, HTA's breakdown.

python -m benchmarks profiles [--shared DIR] [--hta-python PYTHON]

`DIR` has the folders gpu/ and real/. Time is held against HolisticTraceAnalysis where an
interpreter has it (`--hta-python`, or this one), else against a small implementation of its
definition that is written down here.
"""

import argparse
import gzip
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from app.cli.terminal.blocks import known
from app.cli.terminal.profiles import profile_summary
from app.diagnosis.profiles import job
from app.diagnosis.profiles.result import profile_result
from app.errors import InvalidRequest
from app.result.window_result import WindowResult

# Recordings with rank 1 at 1.8x.
SLOW = ("nccl-ddp-slow-on", "nccl-ddp-slow-off", "nccl-fsdp2-slow-on", "nccl-pipe-slow-on")
SLOW_RANK = 1
# Files that are no training on GPUs, with what the refusal has to say.
REFUSED = {"hta-no-gpu": "CPU-only", "tracelens-vllm-inference": "inference"}
MAX_POINTS = 1.0
MIN_COVERAGE = 0.6
CLAIMS = ("nothing stands out", "1.00x", "1.00\u00d7")
SHARED = Path(__file__).parent / ".." / ".." / "shared"
_PARTS = ("computing", "exposed", "idle")


def main(arguments: list[str]) -> int:
    """Run over all files; 1 while a bar is missed, 2 where there are no files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks profiles", description=__doc__)
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder with gpu/ and real/")
    parser.add_argument("--hta-python", help="interpreter that has HolisticTraceAnalysis")
    options = parser.parse_args(arguments)
    slow = {name: _files(options.shared / "gpu", name) for name in SLOW}
    real = _real(options.shared / "real")
    if not all(slow.values()) or not real:
        print(f"{options.shared}: has no gpu/ and real/ with profiles", file=sys.stderr)
        return 2
    measured = {
        "slow": {name: _slow(paths) for name, paths in slow.items()},
        "real": {name: _real_file(name, paths) for name, paths in real.items()},
    }
    paths = [path for files in (*slow.values(), *real.values()) for path in files]
    measured["breakdown"] = _against_hta(paths, options.hta_python)
    missed = _missed(measured)
    print(json.dumps({**measured, "missed": missed}, indent=1))
    return 1 if missed else 0


def _files(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"{name}-rank*.pt.trace.json.gz"))


def _real(folder: Path) -> dict[str, list[Path]]:
    """Files by job: ranks of one job together."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.json.gz")):
        name = path.name.split(".")[0]
        found.setdefault(re.sub(r"-rank\d+.*$", "", name), []).append(path)
    return found


def _slow(paths: Sequence[Path]) -> dict[str, Any]:
    found = profile_result(job.read(paths))
    findings = found.findings or ()
    return {
        "causes": [finding.cause for finding in findings],
        "first": [culprit.rank for finding in findings[:1] for culprit in finding.culprits],
        "cost": [finding.cost_range or finding.cost for finding in findings],
        "step_ms": _rounded(1e3 * known(found.profile).step_time_s),
        "coverage": _rounded(found.coverage),
        "unexplained_share": _rounded(found.unexplained_share),
    }


def _real_file(name: str, paths: Sequence[Path]) -> dict[str, Any]:
    try:
        found = profile_result(job.read(paths))
    except InvalidRequest as error:
        wanted = REFUSED.get(name)
        is_named = wanted is not None and wanted in str(error) and paths[0].name in str(error)
        return {"refused": str(error), "is_right": is_named}
    printed = StringIO()
    Console(file=printed, width=200).print(profile_summary(found))
    profile, coverage = known(found.profile), known(found.coverage)
    shown = (printed.getvalue() + json.dumps(found.as_json())).lower()
    claims = [claim for claim in CLAIMS if claim in shown]
    is_low = coverage < MIN_COVERAGE
    return {
        "ranks": f"{len(profile.ranks_read)} of {profile.world_size}",
        "steps": len(found.steps),
        "step_ms": _rounded(1e3 * profile.step_time_s),
        "coverage": _rounded(coverage),
        "headline": profile.headline,
        "is_right": not (is_low and (claims or found.findings is not None))
        and name not in REFUSED
        and profile.step_time_s > 0,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _against_hta(paths: Sequence[Path], python: str | None) -> dict[str, Any]:
    """Each file's largest difference in percentage points, and the reference used."""
    if python is None and importlib.util.find_spec("hta") is not None:
        python = sys.executable
    theirs = _by_definition(paths) if python is None else _by_hta(paths, python)
    files: dict[str, dict[str, Any]] = {}
    for path in paths:
        ours, other = _ours(path), theirs.get(str(path))
        if ours is None or other is None:
            files[path.name] = {"points": None}
            continue
        apart = {part: round(100 * abs(ours[part] - other[part]), 3) for part in _PARTS}
        shares = {part: [round(ours[part], 4), round(other[part], 4)] for part in _PARTS}
        files[path.name] = {"points": max(apart.values()), "ours_and_theirs": shares}
    against = "its definition, as this benchmark has it" if python is None else "HTA itself"
    return {"against": against, "files": files}


def _ours(path: Path) -> dict[str, float] | None:
    try:
        found = profile_result(job.read([path]))
    except InvalidRequest:
        return None
    return kernel_shares(found)


def kernel_shares(result: WindowResult) -> dict[str, float]:
    """Shares of the first rank's time from its first kernel to its last, as HTA has them."""
    span = known(result.profile).breakdown[0].kernel_span
    return {
        "computing": span.computing_s / span.span_s,
        "exposed": span.communicating_exposed_s / span.span_s,
        "idle": span.idle_s / span.span_s,
    }


def _by_hta(paths: Sequence[Path], python: str) -> dict[str, dict[str, float] | None]:
    script = Path(__file__).with_name("hta_breakdown.py")
    done = subprocess.run(
        [python, str(script), *map(str, paths)], capture_output=True, text=True, check=True
    )
    found: dict[str, dict[str, float] | None] = json.loads(done.stdout.splitlines()[-1])
    return found


def _by_definition(paths: Sequence[Path]) -> dict[str, dict[str, float] | None]:
    return {str(path): _definition(path) for path in paths}


def _definition(path: Path) -> dict[str, float] | None:
    """HTA's temporal breakdown, written from its documentation, in plain Python.

    Computing is the merged time of computing kernels, idle what no kernel takes from the first
    kernel's start to the last one's end; of several profiler steps the last is left out.
    """
    content = json.loads(gzip.decompress(path.read_bytes()))
    events = [each for each in content["traceEvents"] if each.get("ph") == "X"]
    gpu = [each for each in events if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    steps = [
        each["ts"]
        for each in events
        if each.get("cat") == "user_annotation" and each["name"].startswith("ProfilerStep")
    ]
    if len(steps) > 1:
        launched = {
            each["args"]["correlation"]
            for each in events
            if each.get("cat") in ("cuda_runtime", "cuda_driver")
            and each["ts"] < max(steps)
            and "correlation" in each.get("args", {})
        }
        gpu = [each for each in gpu if each["args"].get("correlation") in launched]
    if not gpu:
        return None
    start = min(each["ts"] for each in gpu)
    total = max(each["ts"] + each["dur"] for each in gpu) - start
    computing: list[tuple[float, float]] = []
    comm: list[tuple[float, float]] = []
    rest: list[tuple[float, float]] = []
    for each in gpu:
        is_comm = each["cat"] == "kernel" and "nccl" in each["name"].lower()
        kind = comm if is_comm else computing if each["cat"] == "kernel" else rest
        kind.append((each["ts"] - start, each["ts"] + each["dur"] - start))
    return {
        "computing": _covered(computing) / total,
        "exposed": (_covered(computing + comm) - _covered(computing)) / total,
        "idle": 1 - _covered(computing + comm + rest) / total,
    }


def _covered(intervals: list[tuple[float, float]]) -> float:
    covered, reach = 0.0, 0.0
    for start, end in sorted(intervals):
        covered += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return covered


def _missed(measured: dict[str, Any]) -> list[str]:
    missed = [
        f"{name}: {found['causes']} of ranks {found['first']}"
        for name, found in measured["slow"].items()
        if found["causes"] != ["slow-worker"] or found["first"] != [SLOW_RANK]
    ]
    missed += [name for name, found in measured["real"].items() if not found["is_right"]]
    missed += [
        f"{name}: {found['points']} points from HTA"
        for name, found in measured["breakdown"]["files"].items()
        if found["points"] is not None and found["points"] > MAX_POINTS
    ]
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
