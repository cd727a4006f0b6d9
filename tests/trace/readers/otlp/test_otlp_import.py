"""OTLP traces in files: read from every form, cut into steps, and nothing guessed."""

import gzip
import json
import random
import re
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import BadRequest, InvalidTrace, PacelineError
from app.trace.ops import OP_NAMES
from app.trace.readers.importing import ImportOptions
from app.trace.readers.otlp import messages
from app.trace.readers.otlp.otlp_import import OtlpImport
from app.trace.readers.otlp.spans import OtlpSpan
from app.trace.readers.otlp.steps import (
    MEGATRON_NAMES,
    OPTYPE_OF_SPAN,
    STEP_SPAN,
    WaitingSpans,
    rank_step,
    spans_by_step,
)
from tests.example_counts import many
from tests.harness.samples.otlp import (
    BEGAN_NS,
    MadeSpan,
    as_json,
    as_protobuf,
    resource,
    sample,
    spans,
)

MS = 10**6
WANTED = MEGATRON_NAMES.__contains__


def opened(folder, files, **options):
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return OtlpImport([folder / name for name in files], ImportOptions(**options))


def described(folder, files, **options):
    with closing(opened(folder, files, **options)) as found:
        return found.describe()


def rows(folder, files, **options):
    with closing(opened(folder, files, **options)) as found:
        found.describe()
        return list(found.chunks())


def whats(described):
    return [lack.what for lack in described.missing]


def test_the_sample_is_two_steps_of_two_ranks(tmp_path):
    found = described(tmp_path, sample())
    assert (found.parallelism.dp_size, found.parallelism.pp_size) == (2, 1)
    assert (found.num_ops, found.steps.tolist()) == (24, [5, 6])
    assert (found.run_key, found.labels) == ("run-7", {"times": "host"})
    assert {place.host for place in found.places.values()} == {"node-0"}
    # Its first operation begins 1 ms after the step.
    assert found.origin_ns is not None
    assert found.origin_ns.tolist() == [BEGAN_NS + step * 200 * MS + MS for step in (5, 6)]
    first = rows(tmp_path, sample())[0]
    assert [OP_NAMES[code] for code in first.optype] == [
        *("forward-compute", "forward-compute", "backward-compute", "backward-compute"),
        *("grads-reduce-scatter", "optimizer"),
    ]
    assert first.mb_id.tolist() == [0, 1, 0, 1, -1, -1]


def one_rank(form, made, **more):
    return form(resource(0, dp=1, **more), made)


FORMS = {
    "one request in JSON": lambda made: one_rank(as_json, made),
    "JSON over many lines": lambda made: json.dumps(
        json.loads(one_rank(as_json, made)), indent=1
    ).encode(),
    "one request in protobuf": lambda made: one_rank(as_protobuf, made),
    "a request a line": lambda made: b"\n\n".join(
        one_rank(as_json, made[at : at + 3]) for at in range(0, len(made), 3)
    ),
    "messages": lambda made: b"".join(
        len(body).to_bytes(4, "big") + body
        for at in range(0, len(made), 3)
        for body in [one_rank(as_protobuf, made[at : at + 3])]
    ),
    "packed": lambda made: gzip.compress(one_rank(as_json, made)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_otlp_file_form_gives_the_same_operations(tmp_path, form):
    chunks = rows(tmp_path, {"a": form(spans(0, range(5, 8)))})
    assert [(each.rank, int(each.step[0]), each.step.size) for each in chunks] == [
        (0, 5, 6),
        (0, 6, 6),
        (0, 7, 6),
    ]


def test_spans_may_come_twice_and_in_another_order(tmp_path):
    made = spans(0, range(5, 9))
    shuffled = [*made, *made]
    random.Random(3).shuffle(shuffled)
    chunks = rows(tmp_path, {"a": one_rank(as_json, shuffled)})
    assert [each.step.size for each in chunks] == [6, 6, 6, 6]


def test_a_step_that_lost_spans_is_left_out_and_counted(tmp_path):
    made = [span for span in spans(0, range(5, 8)) if span.number != 6002]
    found = described(tmp_path, {"a": one_rank(as_json, made)})
    assert found.steps.tolist() == [5, 7]
    assert (
        "steps: 1 of 3 steps of ranks left out: step 6 has 1 forward and 2 backward passes: "
        "spans were lost" in whats(found)
    )


def test_interleaved_passes_without_chunks_are_not_numbered(tmp_path):
    made = spans(0, range(5, 7), microbatches=2, chunks=2)
    found = described(tmp_path, {"a": one_rank(as_json, made)})
    told = [what for what in whats(found) if "chunk ids" in what]
    assert told == [
        "micro-batch and chunk ids: 16 of 16 passes belong to one of several chunks of a stage "
        "and do not say to which: not numbered"
    ]
    chunks = rows(tmp_path, {"a": one_rank(as_json, made)})
    assert {int(each.mb_id.max()) for each in chunks} == {-1}
    assert {int(each.mc.max()) for each in chunks} == {-1}


def chunked(made):
    told = []
    count: dict[str, int] = {}
    for span in made:
        attributes = dict(span.attributes)
        if "microbatch" in span.name:
            order = count.setdefault(span.name, 0)
            count[span.name] += 1
            attributes = {
                "megatron.microbatch_id": order // 2 % 2,
                "paceline.model_chunk": order % 2,
            }
        told.append(MadeSpan(span.name, span.number, span.start_ns, span.end_ns, attributes))
    return told


def test_passes_that_say_their_chunk_are_numbered_by_it(tmp_path):
    made = chunked(spans(0, range(5, 6), microbatches=2, chunks=2))
    found = described(tmp_path, {"a": one_rank(as_json, made)})
    assert found.parallelism.vpp_size == 2
    [chunk] = rows(tmp_path, {"a": one_rank(as_json, made)})
    passes = list(zip(chunk.mc.tolist()[:4], chunk.mb_id.tolist()[:4], strict=True))
    assert passes == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert not any("ids" in what for what in whats(found))


def with_transfers(rank, *, complete):
    """Stage 0 sends after its forward pass; stage 1 receives before it, and the other way back."""
    names = {0: ("send_forward", "recv_backward"), 1: ("recv_forward", "send_backward")}[rank]
    made = spans(rank, range(5, 6), microbatches=1)
    extra = [
        MadeSpan(f"megatron.p2p.{name}", 90 + at, made[0].end_ns, made[0].end_ns + MS, {})
        for at, name in enumerate(names[: 2 if complete else 1])
    ]
    return [*made[:-1], *extra, made[-1]]


@pytest.mark.parametrize("complete", [True, False])
def test_transfers_are_kept_only_where_none_is_missing(tmp_path, complete):
    files = {
        f"rank{rank}": as_json(
            resource(rank, dp=1, pp=2), with_transfers(rank, complete=complete or rank == 0)
        )
        for rank in (0, 1)
    }
    found = described(tmp_path, files)
    names = {OP_NAMES[code] for chunk in rows(tmp_path, files) for code in chunk.optype}
    told = [what for what in whats(found) if what.startswith("transfers")]
    if complete:
        assert {"forward-send", "forward-recv", "backward-send", "backward-recv"} <= names
        assert told == []
    else:
        assert not any("send" in name or "recv" in name for name in names)
        assert told[0].startswith("transfers: 3 recorded for 4 passes, fewer than these need")


def test_patterns_of_the_caller_name_other_spans(tmp_path):
    made = [
        MadeSpan(
            {"megatron.microbatch.forward": "fwd-0"}.get(span.name, span.name),
            span.number,
            span.start_ns,
            span.end_ns,
            span.attributes,
        )
        for span in spans(0, range(5, 6), microbatches=1)
    ]
    patterns = ((re.compile(r"^fwd-(?P<mb>\d+)$"), "forward-compute"),)
    [chunk] = rows(tmp_path, {"a": one_rank(as_json, made)}, patterns=patterns)
    assert OP_NAMES[chunk.optype[0]] == "forward-compute"
    assert chunk.mb_id[0] == 0


BAD_SIZE: dict[str, Any] = {"dl.data_parallel.size": "x"}
BAD_RANK: dict[str, Any] = {"service.instance.id": "?"}
BAD = {
    "nothing": (b"", "is empty: want OTLP traces"),
    "blanks": (b" \n ", "is empty: want OTLP traces"),
    "no OTLP": (b"PAR1 something else", "message 1: want OTLP traces"),
    "a list": (b"[1, 2]", "message 1: want OTLP traces"),
    "cut off": (one_rank(as_json, spans(0, range(5, 7)))[:-40], "a: resource 1: "),
    "cut in protobuf": (one_rank(as_protobuf, spans(0, range(5, 6)))[:-3], "longer than the"),
    "a cut message": (b"\0\0\0\x09abc", "message 1: ends after 3 of 9 bytes"),
    "a damaged gzip": (gzip.compress(b"{}" * 999)[:-9], "gzip file is damaged or cut off"),
    "another shape": (b'{"resourceSpans": [{"scopeSpans": 3}]}', "Expected `array"),
    "no spans of ours": (b'{"resourceSpans": []}', "no operation of a training step is there"),
    "no sizes": (
        one_rank(as_json, spans(0, range(5, 6)), **BAD_SIZE),
        "is 'x': want a whole number",
    ),
    "no rank": (
        one_rank(as_json, spans(0, range(5, 6)), **BAD_RANK),
        "its rank is not told",
    ),
}


@pytest.mark.parametrize(("content", "why"), BAD.values(), ids=BAD)
def test_a_file_that_cannot_be_read_gets_one_line(tmp_path, content, why):
    with pytest.raises(InvalidTrace) as refusal:
        described(tmp_path, {"a": content})
    assert why in str(refusal.value)
    assert str(refusal.value).startswith("a")
    assert "\n" not in str(refusal.value)


def test_files_of_two_runs_are_refused(tmp_path):
    files = {
        "a": as_json(resource(0), spans(0, range(5, 6))),
        "b": as_json(resource(1) | {"nemo.run.id": "run-8"}, spans(1, range(5, 6))),
    }
    with pytest.raises(InvalidTrace, match="b: line 1: is of run 'run-8'"):
        described(tmp_path, files)


def test_missing_sizes_can_be_given(tmp_path):
    named = resource(1)
    del named["dl.data_parallel.size"], named["dl.pipeline_parallel.size"]
    content = {"a": as_json(named, spans(1, range(5, 6)))}
    with pytest.raises(InvalidTrace, match="say them with --dp and --pp"):
        described(tmp_path, content)
    found = described(tmp_path, content, sizes={"dp_size": 2, "pp_size": 1})
    assert found.places[1].dp_rank == 1


values = st.one_of(st.text(max_size=20), st.integers(-(2**63), 2**63 - 1))
made_spans = st.builds(
    MadeSpan,
    st.sampled_from(sorted(MEGATRON_NAMES)),
    st.integers(1, 2**63),
    st.integers(1, 2**62),
    st.integers(1, 2**62),
    st.dictionaries(
        st.sampled_from(
            ["megatron.iteration", "megatron.microbatch_id", "megatron.num_microbatches", "x"]
        ),
        st.integers(-5, 2**60),
        max_size=3,
    ),
)


@many(60)
@given(st.dictionaries(st.text(max_size=20), values, max_size=4), st.lists(made_spans, max_size=5))
def test_json_and_protobuf_give_the_same_spans(attributes, made):
    [of_json] = messages.read_json(as_json(attributes, made), WANTED)
    [of_protobuf] = messages.read_protobuf(as_protobuf(attributes, made), WANTED)
    assert {key: str(value) for key, value in of_json.attributes.items()} == {
        key: str(value) for key, value in of_protobuf.attributes.items()
    }
    assert of_json.spans == of_protobuf.spans
    assert (of_json.num_spans, of_json.num_refused) == (len(made), of_protobuf.num_refused)


@many(200)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body):
    for read in (messages.read_json, messages.read_protobuf):
        try:
            read(body, WANTED)
        except PacelineError:
            continue


def test_hundreds_of_damaged_samples_are_read_or_refused(tmp_path):
    rng = random.Random(11)
    good = sample()
    for _ in range(100):
        name = rng.choice(sorted(good))
        body = bytearray(good[name])
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        try:
            rows(tmp_path, {**good, name: bytes(body[: rng.randint(0, 2 * len(body))])})
        except PacelineError:
            continue


def test_unknown_fields_are_passed_over():
    group_free = as_protobuf({"a": "b"}, []) + b"\xa2\x06\x03xyz" + b"\x98\x06\x01"
    [found] = messages.read_protobuf(group_free, WANTED)
    assert found.attributes == {"a": "b"}
    [found] = messages.read_json(b'{"resourceSpans": [{"x": [{"y": 1}]}], "z": null}', WANTED)
    assert found.num_spans == 0


def test_message_longer_than_its_parent_is_refused():
    with pytest.raises(BadRequest, match="byte 2: field 1 is longer than the message around it"):
        messages.read_protobuf(b"\x0a\x05\x0a\x00", WANTED)


def span(name, start, end, **told):
    return OtlpSpan(name, f"{name}{start}", start, end, **told)


FORWARD, BACKWARD = (f"megatron.microbatch.{way}" for way in ("forward", "backward"))


def test_spans_belong_to_the_step_in_whose_time_they_begin():
    first = span(STEP_SPAN, 10, 20, step=1)
    second = span(STEP_SPAN, 30, 40, step=2)
    inside, between, after = (span(FORWARD, at, at + 5) for at in (15, 25, 45))
    before = span(FORWARD, 5, 8)
    steps = spans_by_step([after, second, between, inside, first, before])
    assert steps == [(first, [inside]), (second, [])]


def test_passes_that_contradict_themselves_are_numbered_by_order():
    step = rank_step(
        span(STEP_SPAN, 0, 99, step=1),
        [
            *(span(FORWARD, at, at + 1, microbatch=at % 2) for at in (1, 2, 3)),
            *(span(BACKWARD, at, at + 1) for at in (4, 5, 6)),
        ],
    )
    # Two of one micro-batch: there must be several chunks, and nobody says which.
    assert {op.mb_id for op in step.ops} == {-1}
    assert (step.counts["compute"], step.counts["unnumbered"]) == (6, 6)


def test_step_is_complete_when_it_matches_the_last_or_a_later_one_ended():
    waiting = WaitingSpans()
    for step in (0, 100):
        for each in (
            span(FORWARD, step + 1, step + 2),
            span(BACKWARD, step + 3, step + 4),
            span(STEP_SPAN, step, step + 5, step=step),
        ):
            assert waiting.add(each)
        ready = waiting.ready()
        # The first one may still lack something; the second has as much as the first.
        assert [each.number for each in ready.steps] == ([] if step == 0 else [0, 100])
    waiting.done(ready)
    assert waiting.spans == {}
    assert not waiting.add(span(FORWARD, 50, 51))
    assert waiting.ready().steps == []


def test_every_operations_name_is_one_of_the_engines():
    assert set(OPTYPE_OF_SPAN.values()) <= set(OP_NAMES)
