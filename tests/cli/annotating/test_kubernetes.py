"""`paceline watch-kubernetes` against a small API server with scripted watches."""

import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from app.cli.annotating.annotate import AnnotationBody
from app.cli.annotating.kubernetes import (
    KubernetesApi,
    KubernetesObject,
    annotation_of,
    follow,
    in_cluster_url,
)
from app.errors import InvalidRequest, Unavailable


def event(reason, kind="Node", name="host-043", **more):
    return {
        "metadata": {"uid": f"uid-{reason}", "resourceVersion": "12"},
        "involvedObject": {"kind": kind, "name": name, "namespace": "train"},
        "reason": reason,
        "message": "a\nreason",
        "count": 2,
        "lastTimestamp": "2026-09-21T14:00:00Z",
        **more,
    }


class FakeApiServer:
    """Answers each watch with the next script: lines of the stream, or a status."""

    def __init__(self):
        self.scripts: deque[Any] = deque()
        self.asked: list[tuple[str, str]] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def _handler(fake):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                query = parse_qs(urlsplit(self.path).query)
                fake.asked.append((self.path, self.headers["Authorization"]))
                if "watch" not in query:
                    return self.answer(200, [{"metadata": {"resourceVersion": "5"}}])
                script = fake.scripts.popleft()
                return self.answer(*(script if isinstance(script, tuple) else (200, script)))

            def answer(self, status, lines):
                self.send_response(status)
                self.end_headers()
                for line in lines:
                    self.wfile.write(json.dumps(line).encode() + b"\n")

            def log_message(self, *_):
                pass

        return Handler


@pytest.fixture
def cluster(tmp_path):
    token = tmp_path / "token"
    token.write_text("kube-token\n")
    fake = FakeApiServer()
    yield fake, KubernetesApi(fake.url, token, None)
    fake.close()


def annotated(*arguments, all_jobs=False, **more):
    read = msgspec.convert(event(*arguments, **more), KubernetesObject)
    return annotation_of(read, all_jobs=all_jobs)


def watched(fake, api, add):
    """Follow until every script is used."""
    follow(api, add, wait=lambda _: None, is_over=lambda: not fake.scripts)


def test_node_event_becomes_an_annotation_of_the_jobs_on_the_node():
    assert annotated("NodeNotReady") == AnnotationBody(
        kind="node-not-ready",
        text="a reason",
        host="host-043",
        at="2026-09-21T14:00:00Z",
        source="kubernetes",
        idempotency_key="k8s uid-NodeNotReady 2",
        matchers=[{"label": "host", "pattern": "host-043"}],
    )
    assert annotated("NodeNotSchedulable").text == "cordoned, a reason"
    assert annotated("NodeNotReady", all_jobs=True).matchers == []
    assert annotated("Pulled") is None


def test_evicted_pod_is_placed_on_its_node_or_by_its_own_name():
    on_node = annotated("Evicted", "Pod", "llm-0", source={"host": "host-7"})
    assert (on_node.kind, on_node.host) == ("pod-evicted", "host-7")
    assert on_node.text == "train/llm-0, a reason"
    by_name = annotated("TaintManagerEviction", "Pod", "llm-0")
    assert by_name.matchers == [{"label": "host", "pattern": "llm-0"}]


def test_watch_begins_now_and_goes_on_where_it_ended(cluster):
    fake, api = cluster
    fake.scripts += [
        [
            {"type": "ADDED", "object": event("Evicted", "Pod", "llm-0")},
            {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}},
        ],
        (503, []),
        [{"type": "MODIFIED", "object": event("NodeNotReady")}],
    ]
    found: list[AnnotationBody] = []
    watched(fake, api, found.append)
    assert [annotation.kind for annotation in found] == ["pod-evicted", "node-not-ready"]
    versions = [parse_qs(urlsplit(path).query).get("resourceVersion") for path, _ in fake.asked]
    assert versions == [None, ["5"], ["20"], ["20"]]
    assert {token for _, token in fake.asked} == {"Bearer kube-token"}


def test_watch_begins_anew_when_the_events_are_gone(cluster):
    fake, api = cluster
    gone = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}
    fake.scripts += [[gone], (410, []), [{"type": "ADDED", "object": event("Rebooted")}]]
    found: list[AnnotationBody] = []
    watched(fake, api, found.append)
    assert [annotation.text for annotation in found] == ["node rebooted, a reason"]
    lists = [path for path, _ in fake.asked if "watch" not in path]
    assert len(lists) == 3


def test_event_is_tried_again_while_paceline_is_away(cluster):
    fake, api = cluster
    fake.scripts.append([{"type": "ADDED", "object": event("Evicted", "Pod")}])
    attempts: list[AnnotationBody] = []

    def add(annotation):
        attempts.append(annotation)
        if len(attempts) < 3:
            raise Unavailable("away")

    watched(fake, api, add)
    assert len(attempts) == 3


def test_missing_permission_is_named(cluster):
    fake, api = cluster
    fake.scripts.append((403, []))
    with pytest.raises(InvalidRequest, match=r"ops/kubernetes/watch-events\.yaml"):
        watched(fake, api, print)


def test_api_server_of_a_pod_is_found_in_its_environment(monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert in_cluster_url() == "https://[fd00::1]:6443"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(InvalidRequest, match="--api-server"):
        in_cluster_url()
