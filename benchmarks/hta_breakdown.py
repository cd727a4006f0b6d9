"""HolisticTraceAnalysis on some files: `PYTHON hta_breakdown.py FILE...` prints JSON by file.

It runs under an interpreter that has the package HolisticTraceAnalysis, which Paceline does not
need. Each value is a share of the span that it takes; null where it cannot read the file.
"""

import contextlib
import io
import json
import logging
import sys
import warnings


def main(paths: list[str]) -> None:
    """Print the temporal breakdown and the exposed communication of each file."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()):
        found = {path: shares(path) for path in paths}
    print(json.dumps(found))


def shares(path: str) -> dict[str, float] | None:
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
