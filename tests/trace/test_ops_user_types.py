"""A job's own operation types: what is taken, what is refused, and how it is said back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidRequest
from app.trace.ops import (
    COMPUTE_STREAM,
    FIRST_USER_CODE,
    MAX_TYPE_NAME,
    OP_NAMES,
    OP_SPECS,
    Axis,
    OpKind,
    OpSpec,
    describe_op_types,
    parse_op_types,
    parse_stored_op_types,
)

ALL_TO_ALL = {"name": "moe-all-to-all", "kind": "collective", "axis": "ep"}
SEND = {"name": "kv-send", "kind": "p2p", "pairs_with": "kv-recv", "towards": "next"}
RECV = {"name": "kv-recv", "kind": "p2p"}


@pytest.mark.parametrize(
    ("axis", "meets"),
    [
        ("none", Axis.NONE),
        ("tp", Axis.NONE),
        ("pp", Axis.STAGES),
        ("dp", Axis.DP),
        ("ep", Axis.EP),
    ],
)
def test_a_collective_meets_those_of_its_axis(axis, meets):
    [spec] = parse_op_types([ALL_TO_ALL | {"axis": axis}]).user
    assert spec == OpSpec("moe-all-to-all", OpKind.COLLECTIVE, meets, stream="moe-all-to-all")
    assert not spec.idealised_by_mean


def test_compute_takes_its_place_on_the_compute_stream_unless_it_names_another():
    usual, other = parse_op_types(
        [
            {"name": "router", "kind": "compute"},
            {"name": "offload", "kind": "compute", "axis": "none", "stream": "copies"},
        ]
    ).user
    assert (usual.stream, other.stream) == (COMPUTE_STREAM, "copies")
    assert usual.idealised_by_mean


def test_a_send_knows_its_receiver_and_which_way_it_goes():
    send, recv = parse_op_types([SEND, RECV]).user
    assert (send.pairs_with, send.towards, send.axis) == ("kv-recv", 1, Axis.NEIGHBOUR)
    assert (recv.pairs_with, recv.towards, recv.axis) == ("", 0, Axis.NEIGHBOUR)
    [back, _] = parse_op_types([SEND | {"towards": "previous", "axis": "pp"}, RECV]).user
    assert back.towards == -1


def refused(*described):
    with pytest.raises(InvalidRequest) as refusal:
        parse_op_types(described)
    message = str(refusal.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ([], "op_types[0] is no set of fields: give name, kind"),
        ("moe", "op_types[0] is no set of fields"),
        ({}, "op_types[0]: name is missing: give lower-case letters"),
        ({"name": "moe"}, "op_types[0] (moe): kind is missing: use one of compute, p2p, coll"),
        ({"name": "Moe", "kind": "compute"}, "op_types[0]: name is 'Moe': give lower-case"),
        ({"name": "moe\n", "kind": "compute"}, r"name is 'moe\n'"),
        ({"name": "", "kind": "compute"}, "name is ''"),
        ({"name": None, "kind": "compute"}, "name is 'None'"),
        ({"name": "-moe", "kind": "compute"}, "name is '-moe'"),
        ({"name": "x" * 65, "kind": "compute"}, f"at most {MAX_TYPE_NAME}"),
        ({"name": 7, "kind": "compute"}, "name is '7'"),
        ({"name": "moe", "kind": "annotation"}, "kind is 'annotation': use one of compute"),
        ({"name": "moe", "kind": ["p2p"]}, "kind is \"['p2p']\""),
        ({"name": "moe", "kind": "collective"}, "(moe): axis is missing: use one of none, tp"),
        (ALL_TO_ALL | {"axis": "cp"}, "axis is 'cp': use one of none, tp, pp, dp, ep"),
        (ALL_TO_ALL | {"stream": "a b"}, "stream is 'a b'"),
        (ALL_TO_ALL | {"stream": None}, "stream is 'None'"),
        (ALL_TO_ALL | {"pairs_with": "x"}, "pairs_with is for kind p2p only: leave it out"),
        (ALL_TO_ALL | {"towards": "next"}, "towards is for kind p2p only"),
        (ALL_TO_ALL | {"peers": "all"}, "has 'peers': the fields are name, kind, axis"),
        (ALL_TO_ALL | {3: 4}, "has '3': the fields are"),
        (
            {"name": "a", "kind": "compute", "axis": "dp"},
            "compute operations have no peers: set axis",
        ),
        (SEND | {"axis": "dp"}, "kind p2p is between stages: set axis to pp"),
        (SEND | {"stream": "compute"}, "kind p2p has a stream of its own"),
        (SEND | {"towards": "up"}, "towards is 'up': use one of next, previous"),
        ({"name": "s", "kind": "p2p", "pairs_with": "r"}, "towards is missing: use one of next"),
        (RECV | {"towards": "next"}, "only the type that sends has towards"),
        (SEND, "kv-send pairs with kv-recv, which is no p2p type"),
        (SEND | {"pairs_with": "kv-send"}, "kv-send pairs with kv-send, which is no p2p type"),
        (SEND | {"pairs_with": "forward-recv"}, "pairs with forward-recv, which is no p2p type"),
        (RECV, "kv-recv is received from 0 types"),
    ],
)
def test_invalid_description_is_refused_by_type_and_field(described, message):
    assert message in refused(described)


@pytest.mark.parametrize("name", ["forward-compute", "gc-pause", "forward-pp-comm"])
def test_reserved_type_names_are_refused(name):
    assert f"{name} is known already" in refused(ALL_TO_ALL | {"name": name})


def test_two_sends_to_one_receiver_are_refused():
    assert "received from 2 types" in refused(SEND, RECV, SEND | {"name": "another"})


def test_a_send_to_a_send_is_refused():
    other = SEND | {"name": "kv-recv", "pairs_with": "kv-send"}
    assert "kv-send pairs with kv-recv, which is no p2p type" in refused(SEND, other)


def test_sixty_four_types_are_taken_and_no_more():
    many = [ALL_TO_ALL | {"name": f"type-{number}"} for number in range(65)]
    assert len(parse_op_types(many[:64]).by_code) == len(OP_SPECS) + 64
    assert "65 are too many: a job has 64 of its own" in refused(*many)


def test_a_stored_type_stays_when_a_built_in_one_gets_its_name():
    described = [ALL_TO_ALL | {"name": "gc-pause"}]
    types = parse_stored_op_types(described)
    assert types.codes["gc-pause"] == FIRST_USER_CODE
    assert types.name(OP_NAMES.index("gc-pause")) == "gc-pause"


names = st.from_regex(r"own-[a-z0-9-]{0,20}", fullmatch=True)
collectives = st.fixed_dictionaries(
    {
        "name": names,
        "kind": st.just("collective"),
        "axis": st.sampled_from(["none", "tp", "pp", "dp", "ep"]),
    },
    optional={"stream": st.sampled_from(["compute", "side", "dp-comm"])},
)
computes = st.fixed_dictionaries(
    {"name": names, "kind": st.just("compute")},
    optional={"stream": names, "axis": st.just("none")},
)


@st.composite
def described(draw):
    """Descriptions that go together, in any order."""
    own = draw(st.lists(collectives | computes, max_size=5, unique_by=lambda each: each["name"]))
    for number in range(draw(st.integers(0, 2))):
        towards = draw(st.sampled_from(["next", "previous"]))
        own.append(SEND | {"name": f"s{number}", "pairs_with": f"r{number}", "towards": towards})
        own.append(RECV | {"name": f"r{number}"})
    return draw(st.permutations(own))


@given(described())
def test_described_types_round_trip(described):
    types = parse_op_types(described)
    again = parse_op_types(describe_op_types(types))
    assert again == types
    assert describe_op_types(again) == describe_op_types(types)
    assert [spec.name for spec in types.user] == [each["name"] for each in described]


def test_every_field_of_a_type_is_described():
    assert describe_op_types(parse_op_types([SEND, RECV, ALL_TO_ALL])) == [
        SEND | {"axis": "pp", "stream": "kv-send"},
        RECV | {"axis": "pp", "stream": "kv-recv"},
        ALL_TO_ALL | {"stream": "moe-all-to-all"},
    ]


def test_codes_of_built_in_types_never_move():
    # They are in stored windows: a new row goes to the end of this list.
    assert OP_NAMES[:18] == (
        *("forward-compute", "backward-compute", "optimizer", "gc"),
        *("forward-send", "forward-recv", "backward-send", "backward-recv"),
        *("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"),
        *("layernorm-grads-all-reduce", "embedding-grads-all-reduce", "optimizer-clip-main-grad"),
        *("gc-pause", "data-wait", "backward-input-compute", "backward-weight-compute"),
    )
    assert FIRST_USER_CODE == 64
    assert len(OP_NAMES) <= FIRST_USER_CODE
