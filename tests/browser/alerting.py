"""A server with projects of their own for tests of alerts, which write what fires themselves."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from msgspec.structs import replace

from app.alerts.alert import AlertState
from app.store import runs, tokens
from app.store.alerting import alerts, notifications
from app.store.database import Store
from app.trace.job import job_key
from tests.alerts.http_receiver import Receiver, receiver
from tests.browser.paceline import Paceline, running
from tests.secret_keys import KEY, KEYS
from tests.store import factories

SLOW = replace(factories.SLOW, gpu_hours_lost_per_hour=19.2, num_gpus=64)
_SCOPES = ("ingest", "read", "write", "admin")


class AlertServer:
    """A running `paceline serve`; `told` is the only receiver that its projects may name."""

    def __init__(self, server: Paceline, store: Store, told: Receiver) -> None:
        self.server = server
        self.store = store
        self.told = told

    def project(self, name: str) -> "Project":
        """A project that is nobody else's."""
        return Project(self, name)


class Project:
    """A project, who may do all in it, and what it is told of."""

    def __init__(self, server: AlertServer, name: str) -> None:
        self.server = server
        self.name = name
        self.told = server.told
        self.token = self.new_token(*_SCOPES)
        self.http = httpx.Client(
            base_url=f"{server.server.url}/api/v1",
            headers={"Authorization": f"Bearer {self.token}"},
            trust_env=False,
        )
        self._jobs: set[str] = set()

    def close(self) -> None:
        """Let go of the connection to the API."""
        self.http.close()

    def new_token(self, *scopes: str) -> str:
        """The text of a token with these scopes."""
        wanted = tokens.NewToken(self.name, f"{self.name} of ana", tokens.checked_scopes(scopes))
        with self.server.store.write() as conn:
            _, text = tokens.create(conn, wanted, now_s=time.time())
        return text

    def link(self, path: str, *scopes: str) -> str:
        """A page's address that signs in with all scopes, or with these."""
        token = self.new_token(*scopes) if scopes else self.token
        return f"{self.server.server.url}{path}#token={token}"

    def get(self, path: str, **params: Any) -> Any:
        """The JSON that the API answers."""
        answer = self.http.get(path, params=params)
        answer.raise_for_status()
        return answer.json()

    def send(self, method: str, path: str, **given: Any) -> Any:
        """The JSON that the API answers to a change."""
        answer = self.http.request(method, path, **given)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def fire(
        self, job: str = "llm-70b", rule: str = "slowdown", subject: str = "", **given: Any
    ) -> AlertState:
        """An alert that fires for a while, with its transition; `given` changes it."""
        self._register(job)
        key = job_key(self.name, job)
        now_s = time.time()
        labels = {"job": job, "project": self.name, "rule": rule, "severity": "warning"}
        values: dict[str, Any] = {
            "detail": SLOW,
            "threshold": 1.1,
            "labels": labels | ({"subject": subject} if subject else {}),
            "began_at_s": now_s - 700,
            "firing_at_s": now_s - 600,
        }
        state = factories.alert(key, rule, subject, **values | given)
        sentence = f"{job} runs at 1.42\N{MULTIPLICATION SIGN} of its ideal."
        event = factories.event(
            key, rule, subject, kind="firing", detail=SLOW, at_s=now_s - 600, sentence=sentence
        )
        with self.server.store.write() as conn:
            alerts.save(conn, [state])
            alerts.add_event(conn, event)
        return state

    def _register(self, job: str) -> None:
        if job in self._jobs:
            return
        # So long ago that the consumer waits for nothing of it, and has no word to add.
        long_ago_s = time.time() - 2 * 86_400
        registration = factories.registration(name=job, num_gpus=4)
        with self.server.store.write() as conn:
            runs.register(conn, job_key(self.name, job), registration, now_s=long_ago_s)
        self._jobs.add(job)

    def tell(self, state: AlertState) -> None:
        """Have the dispatcher look at an alert, as a consumer does after each transition."""
        with self.server.store.write() as conn:
            notifications.wake_group(conn, state.job_id, state.rule, at_s=0.0)

    def resolve(self, state: AlertState) -> None:
        """The alert is at rest again."""
        event = factories.event(
            state.job_id,
            state.rule,
            state.subject,
            kind="resolved",
            at_s=time.time(),
            sentence="llm-70b runs at 1.02\N{MULTIPLICATION SIGN} of its ideal again.",
        )
        with self.server.store.write() as conn:
            alerts.remove(conn, [state.fingerprint])
            alerts.add_event(conn, event)

    def add_receiver(self, name: str = "on call", **given: Any) -> dict[str, Any]:
        """The API's answer to a new receiver, at the one that listens."""
        body = {"name": name, "url": f"{self.told.url}/{self.name}"} | given
        made: dict[str, Any] = self.send("POST", "/receivers", json=body)
        return made

    @property
    def messages(self) -> list[bytes]:
        """Bodies that came to this project's receivers."""
        return [body for path, _, body in self.told.requests if path.endswith(f"/{self.name}")]


@contextlib.contextmanager
def alert_server(directory: Path) -> Iterator[AlertServer]:
    """The server, its store, and somebody who listens."""
    with receiver() as told:
        settings = {
            "webhook_allow": "127.0.0.0/8",
            "webhook_allow_http": "true",
            "webhook_ports": f"443,{told.url.split(':')[2].split('/')[0]}",
            "alert_group_wait_s": "0",
            "secret_key": KEY,
        }
        with running("serve", directory, **settings) as server:
            store = Store(f"sqlite:///{directory / 'data' / 'paceline.db'}", keys=KEYS)
            yield AlertServer(server, store, told)
            store.close()
