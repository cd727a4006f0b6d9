"""Texts with scores as a test writes them, and what is read out of them."""

import json

from app.trace.readers.input_file import BodyText
from app.trace.readers.scores import megatron_log, nccl_inspector, nvrx


def read_nvrx(*reports, **whole):
    body = "".join(json.dumps(each) + "\n" for each in reports)
    return nvrx.read([BodyText("reports.jsonl", whole.get("text", body).encode())])


def read_log(text):
    return megatron_log.read([BodyText("training.log", text.encode())])


def read_nccl(*files):
    """Each file is lines of JSON."""
    texts = [
        BodyText(f"{at}.log", "".join(json.dumps(line) + "\n" for line in lines).encode())
        for at, lines in enumerate(files)
    ]
    return nccl_inspector.read(texts)


def header(rank, *, num_ranks=2, comm="0x7f", pid=None):
    pid = rank if pid is None else pid
    return {
        "header": {"id": comm, "rank": rank, "n_ranks": num_ranks, "nnodes": 1},
        "metadata": {"hostname": "host-a", "pid": pid, "dump_timestamp_us": 5_000_000},
    }


def collective(sn, time_us, kind="AllReduce", **more):
    return {"coll_perf": {"coll": kind, "coll_sn": sn, "coll_exec_time_us": time_us, **more}}


def by(report, metric):
    """Mean of each rank (or node) in this metric, and section if it has several."""
    found = [score for score in report.scores if score.metric == metric]
    return {score.node if score.rank is None else score.rank: score.mean for score in found}
