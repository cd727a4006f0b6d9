import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.alerts.formats.text import shorten_notice
from app.alerts.readings import (
    MISSING_DATA_READINGS,
    WINDOW_READINGS,
    with_default_thresholds,
)
from app.alerts.rule import MAX_RUNBOOK_CHARS, ON, SEVERITIES, Rule, default_rules
from app.alerts.rules.rule_text import (
    MAX_RULES_BYTES,
    dump_rules,
    parse_rules,
    rules_of_file,
)
from app.errors import InvalidRules, StartUpFailed
from tests.alerts.notices import notice

FULL = """
rules:
  - name: slow            # as an on-call team would have it
    on: slowdown
    jobs: "llm-*"
    above: 1.10
    clear: 1.05
    for: {windows: 3, seconds: 30}
    keep_firing: 60
    min_confidence: 0.6
    severity: critical
    labels: {team: pretraining, tier: "1"}
    runbook: https://wiki.example/slow
    inhibits: [link]
    cordon: drain-host
  - name: link
    on: cause
    of: "*-link"
    above: 0.1
"""


def problems(text):
    with pytest.raises(InvalidRules) as refused:
        parse_rules(text)
    return list(refused.value.problems)


def of_rule(*lines):
    """What is wrong with one rule of these lines, the first of which is line 2."""
    first, *others = lines
    return problems("\n".join(["rules:", f"  - {first}", *(f"    {line}" for line in others)]))


def test_a_rule_file_sets_every_field():
    slow, link = parse_rules(FULL)
    assert slow == Rule(
        name="slow",
        on="slowdown",
        jobs="llm-*",
        above=1.1,
        clear=1.05,
        for_windows=3,
        for_s=30.0,
        keep_firing_s=60.0,
        min_confidence=0.6,
        severity="critical",
        labels={"team": "pretraining", "tier": "1"},
        runbook_url="https://wiki.example/slow",
        inhibits=("link",),
        cordon="drain-host",
    )
    assert link == Rule("link", "cause", above=0.1, of="*-link")


def test_a_runbook_that_no_message_has_room_for_is_refused():
    address = "https://wiki.example/".ljust(MAX_RUNBOOK_CHARS, "x")
    lines = ("name: slow", "on: slowdown", "above: 1.1")
    [(line, _)] = of_rule(*lines, f"runbook: {address}x")
    assert line == 5
    made = notice(runbook_url=address)
    assert shorten_notice(made).runbook_url == address


@pytest.mark.parametrize("text", ["rules: []", "{rules: []}", '{"rules": []}'])
def test_a_project_may_want_no_rules_at_all(text):
    assert parse_rules(text) == []


@pytest.mark.parametrize("text", ["rules:", "rules: null", "rules: ~"])
def test_a_file_that_was_cut_off_does_not_end_all_watching(text):
    assert problems(text) == [(1, "rules: want a list; [] if nothing is to be watched")]


def test_all_problems_are_reported_with_their_lines():
    found = problems(
        """rules:
  - name: Slow
    on: slowdow
    above: 1,1
    for: {windows: 0, secs: 3}
    labels: {Team: x, severity: y, n: 3}
    labels: {}
  - {name: a, on: slowdown}
  - {name: a, on: worker, above: 1.2, inhibits: [b, a]}
  - 5
"""
    )
    assert [line for line, _ in found] == [2, 3, 4, 5, 5, 6, 6, 6, 7, 8, 9, 9, 9, 10]
    said = " ".join(words for _, words in found)
    for words in ("'Slow'", "'slowdow'", "want a number", "'secs'", "'Team'", "quotes",
                  "a second time", "needs a threshold", "no rule is called 'b'",
                  "cannot inhibit itself", "another rule is called 'a'"):  # fmt: skip
        assert words in said


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "one key"),
        ("- 3", 1, "one key"),
        ("rule: []", 1, "one key"),
        ("rules: []\nmore: 1", 1, "one key"),
        ("rules: yes", 1, "want a list"),
        ("rules:\n  - a: [", 3, "no YAML"),
        ("rules:\n\t- a", 2, "no YAML"),
        ("rules: &a []\nb: *a", 1, "the anchor &a"),
        ("rules: *a", 1, "*a refers to an anchor"),
        ("rules: !!python/object:os.system []", 1, "the tag"),
        ("rules: []\n---\nrules: []", 2, "a second document"),
        ("rules:\n- " + "[" * 5000, 2, "nested too deeply"),
        ("rules: \x00", 1, "does not allow"),
        ("rules: \ud800", 1, "does not allow"),
        ("rules:\n- ? [a]\n  : b", 2, "a key that is no text"),
        ("rules: [" + "5, " * 201 + "]", 1, "at most 200"),
    ],
)
def test_whatever_is_no_list_of_rules_is_refused(text, line, words):
    found = problems(text)
    assert any(at == line and words in said for at, said in found), found


def test_a_yaml_error_keeps_earlier_problems():
    found = problems(
        """rules:
  - {name: a, on: slowdow}
  - {name: b, on: stalled, above: 1, inhibits: [z]}
  - {name: c, on: stalled
  - {name: z, on: stalled}
"""
    )
    assert [line for line, _ in found][:2] == [2, 3]
    assert "no YAML" in found[-1][1]
    # Of a rule that breaks off nobody knows what it lacks, nor of the others how they are called.
    assert len(found) == 3


@pytest.mark.parametrize(
    "refused", ["*a", "[[[[[[[[[x]]]]]]]]]", "{a: {a: {a: {a: {a: {a: {a: [x]}}}}}}}"]
)
def test_an_invalid_value_keeps_later_problems(refused):
    found = problems(f"rules:\n- {{name: a, on: stalled, cordon: {refused}}}\n- {{name: 3}}\n---\n")
    lines = [line for line, _ in found]
    assert (set(lines), lines[-3:]) == ({2, 3, 4}, [3, 3, 4])


def test_another_file_type_is_quoted_in_the_error():
    found = problems("rules: [" + "*a, " * 150 + "]")
    assert (len(found), found[-1]) == (101, (None, "and 200 more"))


def test_a_mapping_of_very_many_keys_is_not_read_to_its_end():
    keys = "".join(f"\n  k{number}: 1" for number in range(5_000))
    found = problems(f"rules:\n- name: a{keys}")
    assert found == [(1_002, "more than 1,000 keys")]


def test_yaml_alias_bombs_are_refused():
    layers = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))
    assert any("anchor" in words for _, words in problems(f"a0: &a0 [x]\n{layers}\nrules: *a29"))


def test_a_text_that_is_too_long_is_not_read():
    [(line, words)] = problems("#" * (MAX_RULES_BYTES + 1))
    assert (line, words.endswith("at most 262,144")) == (None, True)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["name: a", "on: slowdown", "above: 1.0"], "always reached"),
        (["name: a", "on: waste", "above: 1"], "never reached"),
        (["name: a", "on: slowdown", "above: -1"], "0 or more"),
        (["name: a", "on: slowdown", "above: .nan"], "want a number"),
        (["name: a", "on: slowdown", "above: 1e999"], "0 or more"),
        (["name: a", "on: slowdown", 'above: "1.1"'], "want a number"),
        (["name: a", "on: slowdown", "above: 1.1", "clear: 1.2"], "at most above"),
        (["name: a", "on: slowdown", "above: 1.1", "clear: 1.0"], "more than 1"),
        (["name: a", "on: low-fidelity", "clear: 0.01"], "give above, too"),
        (["name: a", "on: stalled", "above: 1"], "no value to compare"),
        (["name: a", "on: slowdown", "above: 1.1", 'of: "x"'], "one alert for the whole job"),
        (["name: a", "on: cause", "above: 0.1", "of: slow"], "no cause is like"),
        (["name: no", "on: stalled"], 'write "no" with quotes'),
        (["name: 3", "on: stalled"], 'write "3" with quotes'),
        (["name: [a]", "on: stalled"], "want a text"),
        (["name:", "on: stalled"], "without name"),
        (["name: a"], "without on"),
        (["name: a", "on: stalled", "keep_firing: 1e9"], "30 days"),
        (["name: a", "on: stalled", "min_confidence: 2"], "0 to 1"),
        (["name: a", "on: stalled", "for: 3"], "windows: 3"),
        (["name: a", "on: stalled", "for: {windows: 1.5}"], "a whole number"),
        (["name: a", "on: stalled", "severity: bad"], "info, warning, critical"),
        (["name: a", "on: stalled", "runbook: javascript:alert(1)"], "want an address"),
        (["name: a", "on: stalled", 'jobs: ""'], "a pattern of"),
        (["name: a", "on: stalled", 'labels: {a: "\\u202e"}'], "cannot be printed"),
        (["name: a", "on: stalled", f"labels: {{a: {'x' * 257}}}"], "at most 256"),
        (["name: a", "on: stalled", "inhibits: b"], "a list of rules"),
        (["name: a", "on: stalled", "cordon: Drain it"], "1 to 64 of"),
        (["name: a", "on: stalled", "colour: red"], "no key 'colour'"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(lines, words):
    found = of_rule(*lines)
    assert any(words in said for _, said in found), found


def test_a_rule_has_at_most_so_many_labels():
    many = ", ".join(f"a{n}: x" for n in range(17))
    assert "at most 16" in of_rule("name: a", "on: stalled", f"labels: {{{many}}}")[0][1]


def test_the_rules_that_hold_by_default_can_be_written_and_read_again():
    rules = default_rules()
    assert parse_rules(dump_rules(rules)) == rules
    assert [rule.name for rule in rules] == [
        "slowdown",
        "cause",
        "step-time",
        "stalled",
        "silent-worker",
        "crashed",
        "fix-outcome",
    ]


def test_the_environment_sets_the_rule_on_the_slowdown():
    rule = default_rules(slowdown=1.3, clear_slowdown=1.2, windows=5, for_s=1.0, keep_firing_s=2.0)[
        0
    ]
    assert (rule.above, rule.clear, rule.for_windows) == (1.3, 1.2, 5)
    assert (rule.for_s, rule.keep_firing_s) == (1.0, 2.0)


def test_a_file_of_rules_is_refused_with_its_name_and_lines(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(FULL)
    assert len(rules_of_file(path)) == 2
    path.write_text("rules:\n  - name: a")
    with pytest.raises(StartUpFailed, match=r"rules\.yaml: line 2: a rule without on"):
        rules_of_file(path)
    path.write_bytes(b"\xff")
    with pytest.raises(StartUpFailed, match="cannot be read"):
        rules_of_file(path)
    with pytest.raises(StartUpFailed, match="cannot be read"):
        rules_of_file(tmp_path / "none.yaml")


def test_there_is_a_figure_or_a_silence_for_everything_that_a_rule_can_be_on():
    # Outcomes of fixes are told once, and never fire.
    assert {*WINDOW_READINGS, *MISSING_DATA_READINGS, "fix-outcome"} == set(ON)


@pytest.mark.parametrize("on", WINDOW_READINGS)
def test_every_figure_clears_below_what_raises_it_and_above_where_all_is_well(on):
    above = 1.2 if WINDOW_READINGS[on].rest else 0.2
    rule = with_default_thresholds(Rule("a", on, above=above))
    assert rule.clear is not None
    assert WINDOW_READINGS[on].rest < rule.clear <= above
    assert (rule.clear == above) == WINDOW_READINGS[on].is_exact
    assert with_default_thresholds(Rule("a", on, above=above, clear=above)).clear == above


names = st.from_regex(r"\A[a-z0-9][a-z0-9-]{0,20}\Z")
texts = st.text(st.characters(categories=("L", "N", "P", "S")), max_size=30)


@given(
    st.lists(
        st.builds(
            Rule,
            name=names,
            on=st.just("worker"),
            above=st.floats(1.01, 50).map(lambda value: float(f"{value:.6g}")),
            of=texts.filter(bool),
            jobs=texts.filter(bool),
            for_windows=st.integers(1, 1000),
            for_s=st.integers(0, 10**6).map(float),
            severity=st.sampled_from(SEVERITIES),
            labels=st.dictionaries(st.sampled_from(["team", "tier", "zone"]), texts),
            runbook_url=st.none() | st.just("https://wiki.example/a?b=c#d"),
            cordon=st.none() | names,
        ),
        max_size=4,
        unique_by=lambda rule: rule.name,
    )
)
def test_written_rules_are_read_back(rules):
    assert parse_rules(dump_rules(rules)) == rules


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text):
    try:
        parse_rules(text)
    except InvalidRules as refused:
        assert refused.problems  # noqa: PT017


def test_misspelt_key_without_a_value_is_reported_too():
    assert "no key 'serverity'" in of_rule("name: a", "on: stalled", "serverity:")[0][1]
    assert "no key 'x'" in of_rule("name: a", "on: stalled", "x: null")[0][1]


def test_label_without_a_text_is_an_empty_one():
    [rule] = parse_rules("rules:\n  - name: a\n    on: stalled\n    labels: {team: }\n")
    assert dict(rule.labels) == {"team": ""}


def test_list_that_is_too_long_is_said_to_be():
    names = ", ".join(f"a{number}" for number in range(201))
    assert of_rule("name: a", "on: stalled", f"inhibits: [{names}]")[0][1] == (
        "inhibits: too many: want at most 200"
    )
