"""`paceline watch-kubernetes`: annotations from the events of a Kubernetes cluster.

`KubernetesApi` reads the event stream of the cluster's API server: GET /api/v1/events with watch=1.
"""

import contextlib
import http.client
import os
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import structlog
import typer

from app.cli.annotating.annotate import LOCAL_URL, AnnotationBody, Token, Url, add_annotation
from app.cli.exporting.http_client import QueryClient
from app.cli.replay import local_token
from app.errors import InvalidRequest, PacelineError, Unavailable

log = structlog.get_logger()

# The server ends a watch after this time; a connection that says nothing for longer is dead.
WATCH_S = 240
_TIMEOUT_S = WATCH_S + 30.0
_MAX_LINE_BYTES = 4 << 20
_GONE = 410

DecodedT = TypeVar("DecodedT")


class _Part(msgspec.Struct, rename="camel", frozen=True):
    """An event's metadata, subject or source: each has some of these."""

    uid: str | None = None
    resource_version: str | None = None
    kind: str | None = None
    name: str | None = None
    namespace: str | None = None
    host: str | None = None


class KubernetesObject(msgspec.Struct, rename="camel"):
    """An event (core/v1), a list of them, or the status of an error."""

    metadata: _Part = _Part()
    reason: str | None = None
    message: str | None = None
    code: int | None = None
    count: int | None = None
    involved_object: _Part = _Part()
    source: _Part = _Part()
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None


class _Change(msgspec.Struct):
    type: str
    object: KubernetesObject


class KubernetesApi:
    """One API server; `token_file` is read before every watch, as tokens of pods rotate."""

    def __init__(
        self,
        url: str,
        token_file: Path | None,
        ca_file: Path | None,
        *,
        namespace: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"--api-server {url[:200]}: is not an http or https address")
        self._parts = parts
        self._token_file = token_file
        self._ca_file = ca_file
        scope = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
        self._path = f"{parts.path.rstrip('/')}/api/v1{scope}/events"
        self._version: str | None = None  # of the last event seen

    def events(self) -> Iterator[KubernetesObject]:
        """Events from now on, or from the end of the last call; returns when the watch ends.

        Raises:
            Unavailable: the server does not answer, or ends the watch with an error.
            InvalidRequest: it refuses.
        """
        if self._version is None:
            with self._opened({"limit": "1"}) as response, _translated():
                listed = _decoded(response.read(_MAX_LINE_BYTES), KubernetesObject)
            self._version = listed.metadata.resource_version or "0"
        query = {
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        with self._opened(query) as response, _translated():
            for line in iter(partial(response.readline, _MAX_LINE_BYTES), b""):
                change = _decoded(line, _Change)
                event = change.object
                if change.type == "ERROR":
                    if event.code == _GONE:  # older than what the server keeps: begin anew
                        self._version = None
                    raise Unavailable(f"the watch failed: {str(event.message)[:300]}")
                self._version = event.metadata.resource_version or self._version
                if change.type in ("ADDED", "MODIFIED"):
                    yield event

    @contextlib.contextmanager
    def _opened(self, query: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        headers = {"Accept": "application/json"}
        if self._token_file is not None:
            headers["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
        connection = self._connection()
        try:
            with _translated():
                connection.request("GET", f"{self._path}?{urlencode(query)}", headers=headers)
                response = connection.getresponse()
            answers = f"the API server answers {response.status}"
            if response.status == _GONE:
                self._version = None
                raise Unavailable("the events since the last watch are gone")
            if response.status >= 500 or response.status == 429:
                raise Unavailable(answers)
            if response.status != 200:
                why = "may this account list and watch events? (ops/kubernetes/watch-events.yaml)"
                raise InvalidRequest(f"{answers}: {why}")
            yield response
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        context = ssl.create_default_context(cafile=self._ca_file)
        return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)


def _decoded(text: bytes, kind: type[DecodedT]) -> DecodedT:
    try:
        return msgspec.json.decode(text, type=kind)
    except ValueError as error:
        raise Unavailable("the API server answers no JSON objects of its API") from error


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"the API server does not answer: {error}") from error


ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_PAUSE_S = 30.0
# By the reason of a Kubernetes event: the kind of its annotation, and what happened.
REASONS = {
    "NodeNotReady": ("node-not-ready", ""),
    "NodeNotSchedulable": ("node-drained", "cordoned"),
    "Rebooted": ("other", "node rebooted"),
    "SystemOOM": ("other", "node out of memory"),
    "Evicted": ("pod-evicted", ""),
    "TaintManagerEviction": ("pod-evicted", ""),
    "Preempted": ("pod-evicted", "preempted"),
    "OOMKilling": ("other", "process killed, out of memory"),
}
_MAX_TEXT = 300


def annotation_of(event: KubernetesObject, *, all_jobs: bool = False) -> AnnotationBody | None:
    """The annotation of a Kubernetes event (core/v1); None of one that says nothing of training.

    It is of the jobs on the event's node; where only the pod is known, of jobs whose host has the
    pod's name. With `all_jobs`, of all.
    """
    if event.reason not in REASONS:
        return None
    kind, words = REASONS[event.reason]
    subject = event.involved_object
    name, is_node = subject.name or "", subject.kind == "Node"
    host = ("" if is_node else event.source.host) or name
    pod = "" if is_node else f"{subject.namespace or 'default'}/{name}"
    text_lines = ", ".join(filter(None, (words, pod, event.message)))
    uid = event.metadata.uid
    return AnnotationBody(
        kind=kind,
        text=_one_line(text_lines),
        host=_one_line(host)[:256] or None,
        at=event.last_timestamp or event.event_time or event.first_timestamp,
        source="kubernetes",
        # The same event is updated, with a higher count, when it happens again.
        idempotency_key=f"k8s {uid} {event.count or 1}" if uid else None,
        matchers=[] if all_jobs or not host else [{"label": "host", "pattern": host}],
    )


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:_MAX_TEXT].strip()


def watch_kubernetes(
    api_server: Annotated[
        str | None,
        typer.Option(help="The cluster's API server. Default: that of the pod.", metavar="URL"),
    ] = None,
    kube_token_file: Annotated[
        Path | None, typer.Option(help="File with a token for it. Default: that of the pod.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="Its certificate authority. Default: that of the pod.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="Only events of pods in this namespace.")
    ] = None,
    all_jobs: Annotated[
        bool,
        typer.Option(
            "--all-jobs", help="Annotate all jobs of the project, not only those on the node."
        ),
    ] = False,
    url: Url = LOCAL_URL,
    token: Token = None,
) -> None:
    """Put evicted pods, cordoned and unready nodes of a cluster on the charts of their jobs.

    Runs until it is stopped. In a pod it needs a service account that may list and watch events:
    ops/kubernetes/watch-events.yaml.
    """
    cluster = KubernetesApi(
        api_server or in_cluster_url(),
        kube_token_file or _existing(ACCOUNT / "token"),
        ca_file or _existing(ACCOUNT / "ca.crt"),
        namespace=namespace,
    )
    paceline_token = token or local_token()

    def add(annotation: AnnotationBody) -> None:
        with QueryClient(url, paceline_token) as server:
            label = add_annotation(server, "/api/v1/annotations", annotation)
        log.info("annotated", label=label, host=annotation.host)

    follow(cluster, add, all_jobs=all_jobs)


def in_cluster_url() -> str:
    """Address of the API server, as Kubernetes tells its pods."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if not host:
        raise InvalidRequest("this is no pod of a cluster: name its API server with --api-server")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None


def follow(
    cluster: KubernetesApi,
    add: Callable[[AnnotationBody], None],
    *,
    all_jobs: bool = False,
    wait: Callable[[float], None] = time.sleep,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Pass on each event as an annotation, and watch again whenever a watch ends."""
    failures = 0
    while not is_over():
        try:
            for event in cluster.events():
                failures = 0
                annotation = annotation_of(event, all_jobs=all_jobs)
                if annotation is not None:
                    _add_or_log(add, annotation, wait)
            wait(1.0)  # a server may end each watch at once
        except Unavailable as error:
            failures += 1
            log.warning("the watch of events ended", reason=str(error))
            wait(min(MAX_PAUSE_S, 2.0 ** min(failures, 5)) * random.uniform(0.5, 1.0))  # noqa: S311


def _add_or_log(
    add: Callable[[AnnotationBody], None], annotation: AnnotationBody, wait: Callable[[float], None]
) -> None:
    """Try a few times while the server is away; a refused annotation is only logged."""
    for pause_s in (1.0, 5.0, 15.0, None):
        try:
            add(annotation)
            return
        except Unavailable as error:
            reason = str(error)
            if pause_s is not None:
                wait(pause_s)
        except PacelineError as error:
            reason = str(error)
            break
    shown = msgspec.json.encode(annotation).decode()[:500]
    log.warning("an event was not annotated", event=shown, reason=reason)
