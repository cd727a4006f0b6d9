"""`paceline annotate` against a real API."""

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.store import annotations
from app.store.migrations import migrate
from tests.api.server import KEY, TOKEN
from tests.client.real_servers import serving
from tests.store.factories import register

AT = ("--at", "2026-09-21T14:00:00Z")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server with a job."""
    database = tmp_path_factory.mktemp("annotate") / "paceline.db"
    migrate(f"sqlite:///{database}")
    with serving(database) as (url, api):
        register(api.store, KEY)
        yield url, api


def annotate(served, *arguments):
    chosen = {"PACELINE_URL": served[0], "PACELINE_TOKEN": TOKEN}
    return CliRunner().invoke(app, ["annotate", *arguments], env=chosen)


def test_annotation_of_a_job_is_stored_once_by_its_key(served):
    options = ("--kind", "deploy", "--text", "v1.4", "--key", "a", "--step", "7", *AT)
    for _ in range(2):
        result = annotate(served, "llm-70b", *options)
        assert (result.exit_code, result.stdout) == (0, "Annotated llm-70b: deploy v1.4\n")
    with served[1].store.read() as conn:
        [found] = annotations.of_job(conn, KEY)
    assert (found.step, found.source, found.author) == (7, "cli", "root token")


def test_annotation_of_many_jobs_has_matchers(served):
    options = ("--kind", "node-drained", "--host", "n1", "--match", "host=n1*", *AT)
    result = annotate(served, *options)
    assert result.stdout == "Annotated all jobs that match: node drained n1\n"
    assert annotate(served, "--all-jobs", "--text", "all").exit_code == 0
    with served[1].store.read() as conn:
        found, _ = annotations.page(conn, "default", annotations.AnnotationFilter())
    by_host = [each for each in found if each.kind == "node-drained"]
    assert [(each.label, each.pattern) for each in by_host[0].matchers] == [("host", "n1*")]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "name a job"),
        (("llm-70b", "--all-jobs"), "one of the three"),
        (("--match", "host"), "want LABEL=PATTERN"),
        (("--all-jobs", "--step", "3"), "only an annotation of one job"),
        (("llm-70b", "--kind", "party"), "422"),
        (("no-such-job", "--text", "a"), "no job 'no-such-job'"),
    ],
)
def test_wrong_annotation_is_refused_in_one_line(served, arguments, reason):
    result = annotate(served, *arguments)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1
