"""A job's key names its project and its id, and neither can be taken for the other."""

import pytest

from app.trace.job import is_job_name, is_project_name, job_key, job_of, project_of


def test_a_key_gives_back_what_it_was_made_of() -> None:
    key = job_key("research", "llm-70b.v2")
    assert key == "research/llm-70b.v2"
    assert (project_of(key), job_of(key)) == ("research", "llm-70b.v2")


def test_a_key_without_a_project_is_of_the_default_one() -> None:
    assert (project_of("llm-70b"), job_of("llm-70b")) == ("default", "llm-70b")


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "9", "x" * 96])
def test_valid_job_names_are_accepted(name: str) -> None:
    assert is_job_name(name)


@pytest.mark.parametrize("name", ["", ".", "-a", "a/b", "a b", "é", "a\n", "x" * 97, "a\x00"])
def test_invalid_job_names_are_refused(name: str) -> None:
    assert not is_job_name(name)


@pytest.mark.parametrize("name", ["default", "9", "a-b", "x" * 31])
def test_valid_project_names_are_accepted(name: str) -> None:
    assert is_project_name(name)


@pytest.mark.parametrize("name", ["", "-a", "A", "a_b", "a/b", "a\n", "x" * 32])
def test_invalid_project_names_are_refused(name: str) -> None:
    assert not is_project_name(name)
