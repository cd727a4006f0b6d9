"""YAML that PyYAML would take minutes for is refused as soon as it is seen to be such."""

import pytest
import yaml

from app.yaml_events import MAX_EVENTS, YamlRefused, yaml_events


@pytest.mark.parametrize("opening", ["[", "{a: ", "[? ", "- "], ids=["list", "map", "key", "block"])
def test_reading_ends_at_the_depth_limit(opening):
    begun = []

    def read():
        for event in yaml_events(opening * 100_000, max_depth=32):
            begun.append(isinstance(event, yaml.CollectionStartEvent))

    with pytest.raises(YamlRefused, match="line 1: this is nested too deeply"):
        read()
    assert sum(begun) == 32


def test_nesting_up_to_the_limit_is_read():
    assert len(list(yaml_events("[" * 32 + "]" * 32, max_depth=32))) == 68


@pytest.mark.parametrize("text", ["%YAML 1.1\n---\na: 1\n", "a: 1\n%TAG ! x\n"])
def test_directives_are_refused_with_their_line(text):
    with pytest.raises(YamlRefused, match=r"line \d: a directive"):
        list(yaml_events(text, max_depth=32))


def test_more_values_than_any_rules_have_are_refused():
    with pytest.raises(YamlRefused, match="more than 20,000 values"):
        list(yaml_events("- 1\n" * (MAX_EVENTS + 1), max_depth=32))
