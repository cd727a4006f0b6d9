"""OTLP spans: which are accepted, which are refused, and the reasons."""

import gzip
import itertools
import json
import shutil
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.api.service.otlp_buffer import MAX_REASONS, SpanBuffer, SpanRefusalLog
from app.errors import QueueUnavailable
from app.ingest.wire.codec import read_entry
from app.trace.ops import OP_NAMES
from app.trace.readers.otlp import messages
from app.trace.readers.otlp.messages import as_varint
from app.trace.readers.otlp.spans import OtlpSpan
from app.trace.readers.otlp.steps import STEP_SPAN
from tests.api.server import NOW_S, Clock, running
from tests.harness.samples.otlp import as_json, as_protobuf, resource, spans

pytestmark = pytest.mark.anyio

PATH = "/v1/traces"
PROTOBUF = "application/x-protobuf"
OPTED_IN = {"paceline.job": "llm-70b", "paceline.host_times": "analyse"}


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(anyio_backend, empty_database, tmp_path_factory):
    """One API for all tests of this file, since its start takes longer than most tests."""
    path = shutil.copy(empty_database, tmp_path_factory.mktemp("spans") / "paceline.db")
    async with running(f"sqlite:///{path}") as api:
        yield api


@pytest.fixture(scope="module")
def numbers():
    return itertools.count()


@pytest.fixture
def project(numbers):
    """A new project for each test."""
    return f"p{next(numbers)}"


@pytest.fixture
async def api(shared, project):
    """The API with a clean state and a token of the project."""
    shared.clock.now_s = NOW_S
    for shard in shared.queue.shards:
        shard.new.clear()
        shard.pending.clear()
    held = shared.app.state.service.span_buffer
    for key in list(held._ranks):
        held._forget(key)
    _, token = shared.token(project=project)
    async with shared.client_with(token) as client:
        yield replace(shared, client=client)


def sent(rank=0, steps=range(5, 7), form=as_json, *, made=None, **more):
    return form(resource(rank, **{**OPTED_IN, **more}), made or spans(rank, steps))


async def post(api, body, media_type="application/json", **headers):
    return await api.client.post(
        PATH, content=body, headers={"content-type": media_type, **headers}
    )


def queued(api):
    entries = api.queue.reader.read(range(4), "test", count=100, block_s=0)
    return [read_entry(entry.body) for entry in entries]


async def test_finished_steps_become_batches_of_their_ranks(api):
    answer = await post(api, sent())
    assert (answer.status_code, answer.json()) == (200, {})
    assert answer.headers["content-type"] == "application/json"
    first, second = queued(api)
    assert (first.epoch, first.rank, first.dp_rank, first.stage) == (1, 0, 0, 0)
    assert (first.host, first.batch_seq, first.steps_done) == ("node-0", 0, ((5, 6),))
    assert (second.batch_seq, second.steps_done) == (1, ((6, 6),))
    names = [OP_NAMES[code] for code in first.columns.optype]
    assert names == [
        *("forward-compute", "forward-compute", "backward-compute", "backward-compute"),
        *("grads-reduce-scatter", "optimizer"),
    ]
    assert first.columns.mb_id.tolist() == [0, 1, 0, 1, -1, -1]
    assert first.columns.duration_ns.tolist()[:4] == [3_000_000] * 2 + [5_000_000] * 2


async def test_job_is_marked_as_having_host_times(api):
    await post(api, sent())
    job = (await api.client.get("/api/v1/jobs/llm-70b")).json()
    assert job["labels"] == {"times": "host", "first_step": "5"}
    assert job["parallelism"]["dp_size"] == 2


async def test_host_times_need_an_opt_in(api):
    answer = await post(api, sent(**{"paceline.host_times": "no"}))
    partial = answer.json()["partialSuccess"]
    assert partial["rejectedSpans"] == 16
    assert "add paceline.host_times=analyse to OTEL_RESOURCE_ATTRIBUTES" in partial["errorMessage"]
    assert queued(api) == []
    assert (await api.client.get("/api/v1/jobs/llm-70b")).status_code == 404


async def test_label_opts_a_registered_job_in(api):
    sizes = {"dp_size": 2, "pp_size": 1}
    labels = {"host_times": "analyse", "first_step": "5"}
    await api.register(run_key="run-7", parallelism=sizes, labels=labels)
    answer = await post(api, sent(**{"paceline.host_times": "no"}))
    assert answer.json() == {}
    assert [batch.batch_seq for batch in queued(api)] == [0, 1]


async def test_repeated_request_has_no_effect(api):
    made = spans(0, range(5, 7))
    await post(api, sent(made=made[:10]))
    await post(api, sent(made=made[:10]))
    await post(api, sent(made=made[10:]))
    assert [batch.columns.num_ops for batch in queued(api)] == [6, 6]
    assert (await post(api, sent(made=made))).json() == {}
    assert queued(api) == []


async def test_late_span_is_reported(api):
    made = spans(0, range(5, 7))
    await post(api, sent(made=made))
    partial = (await post(api, sent(made=[replace(made[0], number=1)]))).json()["partialSuccess"]
    assert partial["errorMessage"] == "1 spans: they came after their step was taken"


async def test_spans_without_a_step_are_reported_once(api):
    made = spans(0, range(5, 7))
    [mark, _] = [span for span in made if span.name == STEP_SPAN]
    early = replace(made[0], number=1, start_ns=mark.start_ns - 2, end_ns=mark.start_ns - 1)
    parts = ([early, *made[:8]], [mark], made[8:])
    partial = [(await post(api, sent(made=part))).json() for part in parts]
    last = {"rejectedSpans": 1, "errorMessage": "1 spans: they lie in no megatron.train_step"}
    assert partial == [{}, {}, {"partialSuccess": last}]
    assert [batch.columns.num_ops for batch in queued(api)] == [6, 6]


async def test_step_with_too_many_spans_is_reported(api, monkeypatch):
    monkeypatch.setattr(api.app.state.service.span_buffer, "max_of_rank", 20)
    made = spans(0, range(5, 6), microbatches=10)
    partial = (await post(api, sent(made=made[:-1]))).json()["partialSuccess"]
    assert partial["rejectedSpans"] == 23
    assert "one step of a rank has more than 20: it cannot be taken" in partial["errorMessage"]
    assert api.app.state.service.span_buffer.num_spans == 1


async def test_steps_of_a_rank_per_request_are_limited(api):
    made = [span for span in spans(0, range(1, 1003)) if span.name == STEP_SPAN]
    partial = (await post(api, sent(made=made))).json()["partialSuccess"]
    # The last step may be unfinished.
    assert partial["rejectedSpans"] == 1001
    waiting = await api.queue.writer.lag()
    assert sum(waiting.entries) == 1000


async def test_run_without_a_first_step_starts_near_0(api):
    sizes = {"dp_size": 2, "pp_size": 1}
    await api.register(run_key="run-7", parallelism=sizes, labels={"host_times": "analyse"})
    partial = (await post(api, sent(steps=range(50_000, 50_002)))).json()["partialSuccess"]
    assert (
        "step 50000 is the first to come, and the job is registered without"
        in (partial["errorMessage"])
    )
    assert queued(api) == []
    assert (await post(api, sent(rank=1, steps=range(1000, 1001)))).json() == {}


async def test_client_batches_are_refused_in_a_run_of_spans(api):
    await post(api, sent())
    sizes = {"dp_size": 2, "pp_size": 1}
    answer = await api.client.put(
        "/api/v1/jobs/llm-70b", json={"run_key": "run-7", "parallelism": sizes}
    )
    assert answer.status_code == 409
    assert "has registered with other times (label times)" in answer.json()["detail"]


async def test_step_repeated_after_a_restart_is_the_same_batch(api):
    await post(api, sent(steps=range(5, 8)))
    before = queued(api)
    for key in list(api.app.state.service.span_buffer._ranks):
        api.app.state.service.span_buffer._forget(key)
    await post(api, sent(steps=range(6, 9)))
    after = queued(api)
    assert [batch.batch_seq for batch in after] == [1, 2, 3]
    assert (before[1].batch_seq, before[1].steps_done) == (1, after[0].steps_done)


async def test_spans_are_kept_during_a_queue_outage(api, monkeypatch):
    body, writer = sent(), api.app.state.service.writer
    append = writer.append

    async def away(*_args):
        raise QueueUnavailable("the event queue does not answer")

    monkeypatch.setattr(writer, "append", away)
    answer = await post(api, body)
    assert answer.status_code == 503
    assert 1 <= int(answer.headers["retry-after"]) <= 30
    monkeypatch.setattr(writer, "append", append)
    assert (await post(api, body)).json() == {}
    assert [batch.steps_done for batch in queued(api)] == [((5, 6),), ((6, 6),)]


async def test_duplicate_rank_is_ignored(api):
    sizes = {"dl.tensor_parallel.size": 2}
    assert (await post(api, sent(rank=1, **sizes))).json() == {}
    assert queued(api) == []
    await post(api, sent(rank=2, **sizes))
    assert {(batch.rank, batch.dp_rank) for batch in queued(api)} == {(2, 1)}


async def test_step_with_lost_spans_is_reported_and_closed(api):
    made = [span for span in spans(0, range(5, 8)) if span.number != 5002]
    partial = (await post(api, sent(made=made))).json()["partialSuccess"]
    assert partial["rejectedSpans"] == 1
    assert "step 5 has 1 forward and 2 backward passes: spans were lost" in partial["errorMessage"]
    done = [(batch.batch_seq, batch.steps_done) for batch in queued(api)]
    assert done == [(0, ()), (1, ((6, 6),)), (2, ((7, 6),))]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no job": ({"paceline.job": ""}, "no job name: set"),
    "no job's name": (
        {"paceline.job": "../x"},
        "is '../x', which is not a valid job id",
    ),
    "no run": (
        {"nemo.run.id": "", "service.instance.id": "", "paceline.rank": 0},
        "the run key is missing: set paceline.run_key",
    ),
    "no rank": ({"service.instance.id": "a"}, "its rank is not told"),
    "no sizes": ({"dl.data_parallel.size": "many"}, "dl.data_parallel.size is 'many'"),
    "too many": ({"dl.data_parallel.size": 2**30}, "dp_size: Input should be less than"),
    "a rank outside": ({"service.instance.id": "x-rank9"}, "rank 9 of a job with 2 ranks"),
    "another stage": ({"dl.pipeline_parallel.rank": 1}, "which in the usual order is 0"),
    "no op's numbers": ({"paceline.vpp_size": 0}, "paceline.vpp_size is '0'"),
}


async def test_invalid_resource_attributes_are_explained(api):
    for case, (more, why) in BAD.items():
        answer = await post(api, sent(**more))
        assert answer.status_code == 200, case
        partial = answer.json()["partialSuccess"]
        assert partial["rejectedSpans"] == 16, case
        assert why in partial["errorMessage"], case
    assert queued(api) == []


async def test_invalid_process_does_not_affect_another(api):
    good = json.loads(sent())
    bad = json.loads(sent(rank=1, **{"paceline.job": ""}))
    both = {"resourceSpans": bad["resourceSpans"] + good["resourceSpans"]}
    partial = (await post(api, json.dumps(both))).json()["partialSuccess"]
    assert partial["rejectedSpans"] == 16
    assert [batch.rank for batch in queued(api)] == [0, 0]


UNTOLD = {"nemo.run.id": "", "service.instance.id": "", "paceline.rank": 0}


@pytest.mark.parametrize(
    "run", [{"paceline.run_key": "by-the-client"}, UNTOLD], ids=["same run", "run not told"]
)
async def test_spans_are_refused_in_a_run_recorded_by_other_means(api, run):
    await api.register(run_key="by-the-client", parallelism={"dp_size": 2, "pp_size": 1})
    partial = (await post(api, sent(**run))).json()["partialSuccess"]
    assert partial["rejectedSpans"] == 16
    assert "is recorded by other means, in run 'by-the-client'" in partial["errorMessage"]
    assert queued(api) == []


async def test_new_run_starts_a_new_epoch(api):
    await post(api, sent())
    await post(api, sent(steps=range(2, 4), **{"nemo.run.id": "run-8"}))
    assert {batch.epoch for batch in queued(api)} == {1, 2}
    partial = (await post(api, sent(steps=range(7, 9)))).json()["partialSuccess"]
    assert "is in epoch 2, not 1" in partial["errorMessage"]


async def test_ended_run_refuses_spans(api):
    await post(api, sent())
    await api.client.post("/api/v1/jobs/llm-70b/end")
    api.clock.now_s += 601
    partial = (await post(api, sent(steps=range(7, 9)))).json()["partialSuccess"]
    assert "has ended: register its next run first" in partial["errorMessage"]


async def test_token_for_another_job_gets_its_own_reason(api, project):
    _, token = api.token("ingest", project=project, job="mine")
    async with api.client_with(token) as client:
        answer = await client.post(PATH, json=json.loads(sent()))
    partial = answer.json()["partialSuccess"]
    assert "this token is for another job only" in partial["errorMessage"]


async def test_the_token_of_one_job_names_the_job(api, project):
    _, token = api.token("ingest", project=project, job="mine")
    async with api.client_with(token) as client:
        answer = await client.post(PATH, json=json.loads(sent(**{"paceline.job": ""})))
    assert answer.json() == {}
    assert (await api.client.get("/api/v1/jobs/mine")).status_code == 200


async def test_compressed_bodies_are_accepted_and_bombs_refused(api):
    assert (await post(api, gzip.compress(sent()), **{"content-encoding": "gzip"})).json() == {}
    bomb = gzip.compress(b" " * (40 << 20), compresslevel=1)
    answer = await post(api, bomb, **{"content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    answer = await post(api, gzip.compress(sent())[:-9], **{"content-encoding": "gzip"})
    assert answer.status_code == 400
    answer = await post(api, sent(), **{"content-encoding": "br"})
    assert answer.status_code == 415


def field(number, content):
    return as_varint(number << 3 | 2) + as_varint(len(content)) + content


ONE_SPAN = field(1, field(2, field(2, b"")))
BROKEN = {
    "no JSON": (b"{", "application/json", 400),
    "another shape": (b'{"resourceSpans": 3}', "application/json", 400),
    "nested": (b'{"a":' + b"[" * 100_000, "application/json", 400),
    "too many objects": (b'{"resourceSpans":[' + b"{}," * 1_000_001, "application/json", 413),
    "too many processes in protobuf": (b"\x0a\x00" * 50_001, PROTOBUF, 413),
    "another type": (b"{}", "text/plain", 415),
    "no type": (b"{}", "", 415),
    "too long": (b" " * ((8 << 20) + 1), "application/json", 413),
    "cut off": (as_protobuf({"a": "b"}, [])[:-1], PROTOBUF, 400),
    "an endless number": (b"\xff" * 11, PROTOBUF, 400),
    "a length beyond": (b"\x0a\xff\xff\xff\xff\x0f", PROTOBUF, 400),
    "no text": (field(1, field(2, field(2, field(5, b"\xff")))), PROTOBUF, 400),
    "too many fields": (b"\x08\x01" * 60_001, PROTOBUF, 413),
    "too many spans": (field(1, field(2, b"\x12\x00" * 50_001)), PROTOBUF, 413),
}


async def test_malformed_request_gets_a_problem(api, monkeypatch):
    monkeypatch.setattr(messages, "MAX_FIELDS", 60_000)
    for case, (body, media_type, status) in BROKEN.items():
        answer = await post(api, body, media_type)
        assert answer.status_code == status, (case, answer.text)
        assert answer.json()["status"] == status


async def test_empty_request_is_accepted(api):
    for body in (b"{}", b'{"resourceSpans": null}', b'{"resourceSpans": [{}]}'):
        assert (await post(api, body)).json() == {}
    assert (await post(api, b"", PROTOBUF)).status_code == 200
    assert (await post(api, ONE_SPAN, PROTOBUF)).status_code == 200


async def test_protobuf_answer_has_the_refusals(api):
    answer = await post(api, sent(form=as_protobuf, **{"paceline.job": ""}), PROTOBUF)
    # ExportTraceServiceResponse{partial_success{rejected_spans: 16, error_message}}
    assert answer.content[:1] == b"\x0a"
    assert answer.content[2:5] == b"\x08\x10\x12" or answer.content[3:6] == b"\x08\x10\x12"
    assert b"no job name: set" in answer.content


async def test_refusals_are_logged_and_counted(api, shared, project):
    async def rejected():
        shown = (await shared.client.get("/metrics")).text.splitlines()
        name = "paceline_spans_rejected_total "
        [value] = [line.removeprefix(name) for line in shown if line.startswith(name)]
        return float(value)

    before = await rejected()
    with capture_logs() as logs:
        await post(api, sent(**{"paceline.host_times": "no"}))
        await post(api, sent(**{"paceline.host_times": "no"}))
        await post(api, sent())
    [line] = [each for each in logs if each["event"] == "spans rejected"]
    assert (line["log_level"], line["project"], line["spans"]) == ("warning", project, 16)
    assert "add paceline.host_times=analyse to OTEL_RESOURCE_ATTRIBUTES" in line["reason"]
    assert await rejected() - before == 32


def test_made_up_reasons_do_not_fill_the_log():
    refusals = SpanRefusalLog(Clock())
    with capture_logs() as logs:
        for letter in "xy":
            refusals.log("a", Counter(letter * length for length in range(1, 100)))
        refusals.log("b", Counter(["z" * 5000]))
    assert [line["project"] for line in logs] == ["a"] * MAX_REASONS + ["b"]
    assert len(logs[-1]["reason"]) == 300


async def test_many_steps_in_one_request_are_accepted(api):
    made = spans(0, range(1, 301))
    assert len(made) > 2000
    assert (await post(api, sent(made=made))).json() == {}
    # The reader's page of entries is 100 long.
    assert [batch.columns.num_ops for batch in queued(api)] == [6] * 100


async def test_jobs_per_request_are_limited(api):
    made = [json.loads(sent(**{"paceline.job": f"job-{at}"})) for at in range(102)]
    for each in made:  # one span per job, which ends no step
        del each["resourceSpans"][0]["scopeSpans"][0]["spans"][1:]
    body = json.dumps({"resourceSpans": [each["resourceSpans"][0] for each in made]})
    partial = (await post(api, body)).json()["partialSuccess"]
    assert partial["rejectedSpans"] == 2
    assert "spans of more than 100 jobs in one request: split it" in partial["errorMessage"]


async def test_invalid_times_are_refused_per_span(api):
    request = json.loads(sent())
    request["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["endTimeUnixNano"] = "1"
    partial = (await post(api, json.dumps(request))).json()["partialSuccess"]
    assert partial["rejectedSpans"] >= 1
    assert "its end is before its start" in partial["errorMessage"]


def test_full_project_evicts_its_own_spans_only():
    held = SpanBuffer(max_spans=40)
    for project in ("a", "b"):
        for rank in range(20):
            key = (f"{project}/job", "run", rank)
            one = held.rank(key)
            for number in range(4):
                span = OtlpSpan("megatron.optimizer_step", str(number), 1, 2)
                one.waiting.add(span)
            held.update_size(key, one)
    assert held.num_spans <= 40
    assert {key[0] for key in held._ranks} == {"a/job", "b/job"}
