"""HolisticTraceAnalysis on some files: `PYTHON hta_breakdown.py FILE...` prints JSON by file.

It runs under an interpreter that has the package HolisticTraceAnalysis, which Paceline does not
need. Each value is a share of the span that it takes; null where it cannot read the file. With
`--repeats N` before the files, each also has "s", the median seconds of N further readings.
"""

import contextlib
import io
import json
import logging
import statistics
import sys
import time
import warnings
from importlib.metadata import version
from typing import Any

PACKAGE = "HolisticTraceAnalysis"


def main(arguments: list[str]) -> None:
    """Print the temporal breakdown and the exposed communication of each file."""
    is_timed = arguments[:1] == ["--repeats"]
    repeats, paths = (int(arguments[1]), arguments[2:]) if is_timed else (0, arguments)
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    found: dict[str, dict[str, Any] | None] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for path in paths:
            found[path] = of_path = shares(path)
            if of_path is not None and is_timed:
                of_path |= {"s": seconds(path, repeats), "version": version(PACKAGE)}
    print(json.dumps(found))


def seconds(path: str, repeats: int) -> float:
    """The median seconds of reading the file and breaking it down."""
    taken_s = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        shares(path)
        taken_s.append(time.perf_counter() - began_s)
    return statistics.median(taken_s)


def shares(path: str) -> dict[str, Any] | None:
    """Computing, exposed communication and idle of one file."""
    from hta.trace_analysis import TraceAnalysis

    try:
        analysis = TraceAnalysis(trace_files={0: path}, trace_dir="")
        row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
        types, _ = analysis.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
        total = float(row["kernel_time(us)"])
        by_type = dict(zip(types["kernel_type"], types["sum"], strict=True))
        exposed = sum(
            float(sum_us)
            for name, sum_us in by_type.items()
            if "COMMUNICATION" in name and "COMPUTATION" not in name
        )
        return {
            "computing": float(row["compute_time(us)"]) / total,
            "exposed": exposed / total,
            "idle": float(row["idle_time(us)"]) / total,
        }
    except Exception:
        # Whatever it raises over a file, it has no figures of it.
        return None


if __name__ == "__main__":
    main(sys.argv[1:])
