"""`paceline annotate`: report a deploy, a checkpoint or another event to a server."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from app.cli.exporting.http_client import QueryClient
from app.cli.options import token_option
from app.cli.output import printable
from app.cli.replay import local_token
from app.errors import InvalidRequest

LOCAL_URL = "http://127.0.0.1:8642"
Url = Annotated[str, typer.Option(envvar="PACELINE_URL", help="The server.")]
Token = Annotated[str | None, token_option("Its token, with the scope ingest or write")]


class AnnotationBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The body of a request; what is None is not sent."""

    kind: str
    text: str
    source: str
    host: str | None = None
    at: str | None = None
    ends_at: str | None = None
    idempotency_key: str | None = None
    step: int | None = None
    matchers: list[dict[str, str]] | None = None


def annotate(
    job: Annotated[
        str | None, typer.Argument(help="The job; or use --all-jobs or --match.", metavar="[JOB]")
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="deploy, checkpoint, config-change, maintenance, node-drained, node-not-ready, "
            "pod-evicted, job-requeued, note or other."
        ),
    ] = "note",
    text: Annotated[str, typer.Option(help="In words, one line.")] = "",
    host: Annotated[str | None, typer.Option(help="The host that it is about.")] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="The step in which it happened; default: by the time.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="When: 2026-11-21T22:00:00Z. Default: now.")
    ] = None,
    ends_at: Annotated[str | None, typer.Option(help="When it ended; default: a moment.")] = None,
    all_jobs: Annotated[
        bool, typer.Option("--all-jobs", help="Annotate all jobs of the project.")
    ] = False,
    match: Annotated[
        list[str] | None,
        typer.Option(
            help="Annotate the jobs with this label, or on such a host: team=vision, host=node-7*.",
            metavar="LABEL=PATTERN",
        ),
    ] = None,
    source: Annotated[str, typer.Option(help="The program that reports it.")] = "cli",
    key: Annotated[
        str | None,
        typer.Option(help="Store it only once, however often a command with this text runs."),
    ] = None,
    url: Url = LOCAL_URL,
    token: Token = None,
) -> None:
    """Put a deploy, a checkpoint or another event on the charts of a job, or of many.

    Example: paceline annotate llm-70b --kind deploy --text v1.4
    """
    annotation = AnnotationBody(
        kind=kind,
        text=text,
        source=source,
        host=host,
        at=at,
        ends_at=ends_at,
        idempotency_key=key,
        step=step,
    )
    path = annotations_path(job, matchers_of(match or []), annotation, all_jobs=all_jobs)
    with QueryClient(url, token or local_token()) as server:
        label = add_annotation(server, path, annotation)
    typer.echo(f"Annotated {job or 'all jobs that match'}: {printable(label)}")


def annotations_path(
    job: str | None,
    matchers: Sequence[dict[str, str]],
    annotation: AnnotationBody,
    *,
    all_jobs: bool,
) -> str:
    """The path to post to; puts matchers into the annotation."""
    if (job is not None) + bool(matchers) + all_jobs != 1:
        raise InvalidRequest("name a job, or use --all-jobs or --match: one of the three")
    if job is not None:
        from paceline_client.sending.transport import job_path

        return job_path(job, "/annotations")
    if annotation.step is not None:
        raise InvalidRequest("--step: only an annotation of one job has a step")
    annotation.matchers = [*matchers]
    return "/api/v1/annotations"


def matchers_of(given: Sequence[str]) -> list[dict[str, str]]:
    """Matchers from LABEL=PATTERN."""
    matchers = []
    for text in given:
        label, equals, pattern = text.partition("=")
        if not equals:
            raise InvalidRequest(f"--match {text}: want LABEL=PATTERN, such as host=node-7*")
        matchers.append({"label": label, "pattern": pattern})
    return matchers


def add_annotation(server: QueryClient, path: str, annotation: AnnotationBody) -> str:
    """Post an annotation; returns its label, and raises the client's errors."""
    answer = server.post(path, msgspec.json.encode(annotation), "application/json")
    try:
        return str(msgspec.json.decode(answer)["label"])
    except (ValueError, KeyError, TypeError):
        why = "the server answers no annotation: is it Paceline's address?"
        raise InvalidRequest(why) from None
