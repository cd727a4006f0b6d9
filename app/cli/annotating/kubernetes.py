"""`paceline watch-kubernetes`: annotations from the events of a Kubernetes cluster."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import structlog
import typer

from app.cli.annotating.annotate import LOCAL_URL, AnnotationBody, Token, Url, add_annotation
from app.errors import InvalidRequest, PacelineError, Unavailable

if TYPE_CHECKING:
    from app.cli.annotating.kubernetes_api import KubernetesApi, KubernetesObject

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

log = structlog.get_logger()


def annotation_of(event: "KubernetesObject", *, all_jobs: bool = False) -> AnnotationBody | None:
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
    said = ", ".join(filter(None, (words, pod, event.message)))
    uid = event.metadata.uid
    return AnnotationBody(
        kind=kind,
        text=_one_line(said),
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
    from app.cli.annotating.kubernetes_api import KubernetesApi
    from app.cli.exporting.http_client import QueryClient
    from app.cli.replay import local_token

    cluster = KubernetesApi(
        api_server or in_cluster_url(),
        _existing(kube_token_file, ACCOUNT / "token"),
        _existing(ca_file, ACCOUNT / "ca.crt"),
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


def _existing(given: Path | None, usual: Path) -> Path | None:
    return given or (usual if usual.is_file() else None)


def follow(
    cluster: "KubernetesApi",
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
