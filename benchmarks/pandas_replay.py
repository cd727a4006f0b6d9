"""A published trace replayed with pandas: `PYTHON pandas_replay.py TRACE [REPEATS]` prints JSON.

The peer that `figures` times Paceline against: what a careful user of pandas writes in an afternoon
from the published method (docs/replay.md, sections 1 to 4). It runs under any interpreter with
pandas and pyarrow, and imports nothing of Paceline. It knows one schedule, that of the trace AR:
sends and receives by position, one model chunk a stage, gradients after the last backward.
"""

import importlib
import json
import statistics
import sys
import time
from collections import defaultdict
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Any

import numpy as np

Frame = Any  # pandas is not installed where types are checked
Key = tuple[str, int, int]  # type, stage, number

COMPUTES = ("forward-compute", "backward-compute")
ONWARD = {"forward": 1, "backward": -1}
BY_MEAN = (*COMPUTES, "optimizer", "gc")
ACROSS_DP = ("params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad")
STREAMS = (
    COMPUTES,
    ("forward-send",),
    ("forward-recv",),
    ("backward-send",),
    ("backward-recv",),
    ("params-all-gather", "grads-reduce-scatter"),
)
END_OF_STEP = (
    "gc",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "grads-reduce-scatter",
    "optimizer-clip-main-grad",
    "optimizer",
)
TOLERANCE_S = 50e-6
MOST_NEGATIVE_S = -0.010  # a transfer as short as that is set to 0


def main(arguments: list[str]) -> None:
    """Print step times, slowdowns and the median seconds of the repeats."""
    path, repeats = arguments[0], int(arguments[1]) if len(arguments) > 1 else 5
    figures = replayed(path)
    seconds = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        replayed(path)
        seconds.append(time.perf_counter() - began_s)
    version = importlib.import_module("pandas").__version__
    print(json.dumps({"pandas": version, "s": statistics.median(seconds), **figures}))


def replayed(path: str) -> dict[str, Any]:
    """Step times in seconds, by step, and slowdowns by type, dp rank and stage."""
    ops = importlib.import_module("pandas").read_parquet(path)
    ops = ops.astype({"start_ts": "float64", "duration": "float64", "optype": "str"})
    if (ops["optype"] == "separate-grads-all-reduce").any() or (ops["mc"] > 0).any():
        raise SystemExit(f"{path}: this replay knows neither overlapped gradients nor chunks")
    ops["end_ts"] = ops["start_ts"] + ops["duration"]
    by_step = ops.groupby("step")
    recorded = by_step["end_ts"].max() - by_step["start_ts"].min()
    first = ops[(ops["step"] == ops["step"].iloc[0]) & (ops["dp_rank"] == 0)]
    before, groups = dependencies(first)
    kept, ideal = transfers(ops, groups)
    order = in_order(before, groups)

    def step_times(is_kept: Any) -> Any:
        return simulated(kept.where(is_kept, ideal, axis=0), order, before)

    everything = kept.notna()
    all_kept, all_ideal = step_times(everything), step_times(~everything)
    optypes = kept.index.get_level_values("optype")
    stages = kept.index.get_level_values("stage")
    dp_ranks = kept.columns.get_level_values("dp_rank")
    names = optypes.str.replace(r"-(?:send|recv)$", "-pp-comm", regex=True)

    def slowdown(is_kept: Any) -> float:
        return float(step_times(is_kept).mean() / all_ideal.mean())

    return {
        "recorded": recorded.tolist(),
        "simulated": all_kept.tolist(),
        "ideal": all_ideal.tolist(),
        "slowdown": float(all_kept.mean() / all_ideal.mean()),
        "optype_slowdown": {
            name: slowdown(everything.mul(names == name, axis=0)) for name in names.unique()
        },
        "stage_slowdown": [
            slowdown(everything.mul(stages == stage, axis=0)) for stage in sorted(stages.unique())
        ],
        "dp_rank_slowdown": [
            slowdown(everything.mul(dp_ranks == dp_rank, axis=1))
            for dp_rank in sorted(dp_ranks.unique())
        ],
    }


def dependencies(first: Frame) -> tuple[dict[Key, list[Key]], list[list[Key]]]:
    """What each operation of a replica waits for, and which ones end together."""
    before: dict[Key, list[Key]] = {}
    num_stages = int(first["stage"].max()) + 1
    has_peers: dict[tuple[str, int], list[Key]] = {}
    for stage, rows in first.groupby("stage"):
        rows = rows.sort_values(["start_ts", "seq_id", "optype"])
        rows = rows.assign(
            key=list(zip(rows["optype"], rows["stage"], rows["seq_id"], strict=True))
        )
        before |= {key: [] for key in rows["key"]}
        for stream in STREAMS:
            chain(before, rows.loc[rows["optype"].isin(stream), "key"].tolist())
        for direction in ONWARD:
            sends, receives = transfers_of(before, rows, direction)
            is_last = stage == (num_stages - 1 if direction == "forward" else 0)
            is_first = stage == (0 if direction == "forward" else num_stages - 1)
            has_peers[f"{direction}-send", stage] = [] if is_last else sends
            has_peers[f"{direction}-recv", stage] = [] if is_first else receives
        first_backward(before, rows)
        gathers = rows.loc[rows["optype"] == "params-all-gather", "key"].tolist()
        forwards = rows.loc[rows["optype"] == "forward-compute", "key"].tolist()
        if gathers and forwards:
            before[forwards[0]].append(max(gathers, key=lambda key: key[2]))
        chain(before, end_of_step(rows, num_stages))
    return before, meetings(before, has_peers, num_stages)


def chain(before: dict[Key, list[Key]], keys: list[Key]) -> None:
    """One after the other."""
    for earlier, later in pairwise(keys):
        before[later].append(earlier)


def transfers_of(
    before: dict[Key, list[Key]], rows: Frame, direction: str
) -> tuple[list[Key], list[Key]]:
    """The live sends and receives of a stage, joined with the computations that they serve."""
    of_type = dict(iter(rows.groupby("optype")))
    computes = of_type.get(f"{direction}-compute", rows.head(0))
    sends = of_type.get(f"{direction}-send", rows.head(0))
    receives = of_type.get(f"{direction}-recv", rows.head(0))
    if computes.empty:
        return [], []
    sends = sends[sends["end_ts"] >= computes["end_ts"].iloc[0] - TOLERANCE_S]
    receives = receives[receives["start_ts"] <= computes["start_ts"].iloc[-1] + TOLERANCE_S]
    skipped = 1 if len(receives) == len(computes) - 1 else 0
    worked = computes["key"].tolist()
    sent, received = sends["key"].tolist(), receives["key"].tolist()
    for k, receive in enumerate(received[: len(worked) - skipped], start=skipped):
        before[worked[k]].append(receive)
        if k:
            before[receive].append(worked[k - 1])
    for compute, send in zip(worked, sent, strict=False):
        before[send].append(compute)
    return sent[: len(worked)], received[: len(worked) - skipped]


def first_backward(before: dict[Key, list[Key]], rows: Frame) -> None:
    """The first backward transfers wait for the second-last compute before the first backward."""
    computes = rows[rows["optype"].isin(COMPUTES)]
    backwards = (computes["optype"] == "backward-compute").to_numpy().nonzero()[0]
    if len(backwards) and backwards[0] >= 2:
        awaited = computes["key"].iloc[backwards[0] - 2]
        stage = awaited[1]
        for optype in ("backward-send", "backward-recv"):
            if (optype, stage, 0) in before:
                before[optype, stage, 0].append(awaited)


def end_of_step(rows: Frame, num_stages: int) -> list[Key]:
    """From the last computation to the optimizer."""
    computes = rows[rows["optype"].isin(COMPUTES)]
    found = [computes.loc[computes["end_ts"].idxmax(), "key"]] if len(computes) else []
    for optype in END_OF_STEP:
        keys = rows.loc[rows["optype"] == optype, "key"].tolist()
        if optype == "grads-reduce-scatter":
            found += keys
        elif optype != "embedding-grads-all-reduce" or rows["stage"].iloc[0] in (0, num_stages - 1):
            found += keys[:1]
    return found


def meetings(
    before: dict[Key, list[Key]], has_peers: dict[tuple[str, int], list[Key]], num_stages: int
) -> list[list[Key]]:
    """Operations of a replica that end together: pairs, and what the stages do together."""
    together: list[list[Key]] = []
    for direction, towards in ONWARD.items():
        for stage in range(num_stages):
            peer = has_peers.get((f"{direction}-recv", stage + towards), [])
            sends = has_peers[f"{direction}-send", stage]
            together += [list(pair) for pair in zip(sends, peer, strict=False)]
    for optype in ("embedding-grads-all-reduce", "optimizer-clip-main-grad"):
        by_number: dict[int, list[Key]] = defaultdict(list)
        for key in before:
            if key[0] == optype:
                by_number[key[2]].append(key)
        together += by_number.values()
    met = {key for group in together for key in group}
    return together + [[key] for key in before if key not in met]


def in_order(before: dict[Key, list[Key]], groups: list[list[Key]]) -> list[list[Key]]:
    """The groups, each after all that its operations wait for."""
    number = {key: at for at, group in enumerate(groups) for key in group}
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for at, group in enumerate(groups):
        sorter.add(at, *(number[other] for key in group for other in before[key]))
    return [groups[at] for at in sorter.static_order()]


def transfers(ops: Frame, groups: list[list[Key]]) -> tuple[Frame, Frame]:
    """Seconds [operation, (step, dp rank)] from the last arrival to the end, and ideal ones."""
    number = {key: at for at, group in enumerate(groups) for key in group}
    keys = zip(ops["optype"], ops["stage"], ops["seq_id"], strict=True)
    across = ops["optype"].isin(ACROSS_DP)
    ops = ops.assign(group=[number[key] for key in keys], lane=ops["dp_rank"].mask(across, -1))
    met = ops.groupby(["step", "lane", "group"])["start_ts"]
    met_s = met.transform("max")
    took_s = ops["end_ts"] - met_s
    took_s = took_s.mask((took_s <= MOST_NEGATIVE_S) & (met.transform("size") > 1), 0.0)
    ops = ops.assign(took_s=took_s)
    by_type = ops.groupby("optype")["took_s"]
    means, medians = by_type.mean(), by_type.median()
    ideal = means.where(means.index.isin(BY_MEAN), medians)
    kept = ops.pivot(
        index=["optype", "stage", "seq_id"], columns=["step", "dp_rank"], values="took_s"
    )
    return kept, kept.index.get_level_values("optype").map(ideal).to_series(index=kept.index)


def simulated(took: Frame, order: list[list[Key]], before: dict[Key, list[Key]]) -> Any:
    """The time of each step, in seconds: until the last optimizer has ended."""
    steps = took.columns.get_level_values("step")
    num_steps = steps.nunique()
    seconds = took.sort_index(axis=1).to_numpy().reshape(len(took), num_steps, -1)
    row = {key: at for at, key in enumerate(took.index)}
    ends: dict[Key, Any] = {}
    for group in order:
        met = np.zeros(seconds.shape[1:])
        for key in group:
            for other in before[key]:
                met = np.maximum(met, ends[other])
        if group[0][0] in ACROSS_DP:
            met = np.broadcast_to(met.max(axis=1, keepdims=True), met.shape)
        for key in group:
            ends[key] = met + seconds[row[key]]
    return np.max([end.max(axis=1) for key, end in ends.items() if key[0] == "optimizer"], axis=0)


if __name__ == "__main__":
    main(sys.argv[1:])
