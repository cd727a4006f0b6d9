"""Known secrets are given to a real service, and then searched for wherever it writes.

The environment of a process may hold them, and two files that only their owner reads: the token
and the secret key.
"""

import io
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli import app
from tests.alerts.http_receiver import Answer, Receiver, receiver
from tests.alerts.mail_server import mail_server
from tests.browser.paceline import running
from tests.browser.waiting import wait_until
from tests.harness.backends import find_programs
from tests.harness.http_client import HttpClient
from tests.harness.stack import SECRET_KEY, TOKEN, Stack

Ask = Callable[..., Any]

PATH = "services-T0SECRET-OF-THE-PATH"
OPERATORS_PATH = "operators-T0SECRET-path"
GIVEN = {
    "path of a URL": PATH,
    "query of a URL": "query-0f-the-url-is-secret",
    "routing key": "r0uting-key-0f-the-pager",
    "bearer token": "bearer-0f-the-alertmanager",
    "header": "passw0rd-0f-the-header",
    "path of the operator's URL": OPERATORS_PATH,
    "operator's signing secret": "whsec_b3BlcmF0b3JzLXNpZ25pbmctc2VjcmV0",
    "password of the mail server": "passw0rd-0f-the-mail-server",
}


def settings_for(hook: Receiver, mail_port: int) -> dict[str, str]:
    origin = hook.url.removesuffix("/hook")
    return {
        "webhook_url": f"{origin}/{OPERATORS_PATH}",
        "webhook_secret": GIVEN["operator's signing secret"],
        "webhook_allow": "127.0.0.0/8",
        "webhook_allow_http": "true",
        "webhook_ports": origin.rpartition(":")[2],
        "smtp_url": f"smtp://paceline:{GIVEN['password of the mail server']}@127.0.0.1:{mail_port}",
        "smtp_from": "paceline@example.com",
    }


def use(ask: Ask, hook: Receiver) -> dict[str, str]:
    """Add receivers of all kinds, and send to each; further secrets that were made meanwhile.

    The receiver refuses, and repeats in its answer what it was sent.
    """
    hook.answer = Answer("echo")
    origin = hook.url.removesuffix("/hook")
    url = f"{origin}/{PATH}?key={GIVEN['query of a URL']}"
    more = {"headers": {"Authorization": f"Bearer {GIVEN['header']}", "X-Key": GIVEN["header"]}}
    wanted: list[dict[str, Any]] = [
        {"format": "slack", "url": url},
        {"format": "standard", "url": url, **more},
        {"format": "cloudevents", "url": url},
        {"format": "pagerduty", "url": f"{origin}/{PATH}", "secret": GIVEN["routing key"]},
        {"format": "alertmanager-push", "url": f"{origin}/{PATH}", "secret": GIVEN["bearer token"]},
        {"format": "email", "url": "mailto:oncall@example.com"},
    ]
    made: dict[str, str] = {}
    for number, each in enumerate(wanted):
        body = {"name": f"receiver {number}", **each}
        created = ask("POST", "/receivers", body)
        if created["secret"]:
            made[f"signing secret {number}"] = created["secret"]
        ask("POST", f"/receivers/{created['receiver_id']}/test")
        if number == 1:
            rotated = ask("POST", f"/receivers/{created['receiver_id']}/rotate")
            made["rotated secret"] = rotated["secret"]
            ask("PATCH", f"/receivers/{created['receiver_id']}", {"headers": more["headers"]})
    ask("POST", "/receiver-tests", {"name": "unsaved", **wanted[1]})
    ask("POST", "/receivers/settings/test")
    made["token"] = ask("POST", "/tokens", {"name": "a", "scopes": ["read"]})["token"]

    def all_are_tried() -> bool:
        found = ask("GET", "/deliveries?limit=100")["items"]
        return len(found) == 7 and all(each["attempt"] > 0 and each["detail"] for each in found)

    wait_until(all_are_tried, "every message was tried")
    answers = [ask("GET", path) for path in ("/deliveries", "/receivers", "/audit", "/sessions")]
    shown = [name for name, secret in (GIVEN | made).items() if secret in str(answers)]
    assert shown == [], "no answer shows a secret"
    return made


def places(directories: Iterable[Path]) -> Mapping[str, bytes]:
    """Everything that can be read: files, members of archives, and command lines."""
    found: dict[str, bytes] = {}
    for path in (path for each in directories for path in each.rglob("*")):
        if path.is_file():
            found[str(path)] = content = path.read_bytes()
            if zipfile.is_zipfile(io.BytesIO(content)):
                with zipfile.ZipFile(path) as archive:
                    for name in archive.namelist():
                        found[f"{path}:{name}"] = archive.read(name)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found[f"{process}/cmdline"] = (process / "cmdline").read_bytes()
        except OSError:
            continue
    return found


def hits(secrets: Mapping[str, str], found: Mapping[str, bytes]) -> set[tuple[str, str]]:
    """Each secret and the place where it is in plain."""
    return {
        (name, place)
        for name, secret in secrets.items()
        for place, content in found.items()
        if secret.encode() in content
    }


@pytest.mark.nightly
def test_no_secret_is_in_files_logs_backup_or_command_lines_of_serve(tmp_path):
    with receiver() as hook, mail_server() as mailbox:
        settings = settings_for(hook, mailbox.port)
        with running("serve", tmp_path, **settings) as server:

            def ask(method: str, path: str, body: Any = None) -> Any:
                answer = server.http.request(method, path, json=body)
                assert answer.is_success, answer.text
                return answer.json() if answer.content else None

            signed_in = server.http.post("/session", json={"token": server.token})
            secrets = GIVEN | use(ask, hook)
            secrets["cookie"] = signed_in.cookies["paceline_session"].partition(".")[2]
            secrets["root token"] = server.token
            data, backup = tmp_path / "data", tmp_path / "backup.zip"
            secrets["secret key"] = (data / "secret.key").read_text().strip()
            for command in (f"backup {backup}", f"restore {backup}"):
                where = data if command.startswith("backup") else tmp_path / "elsewhere"
                done = CliRunner().invoke(app, [*command.split(), "--data-dir", str(where)])
                assert done.exit_code == 0, done.output
            while_running = hits(secrets, places([tmp_path]))
        expected = {
            ("root token", str(data / "token")),
            ("secret key", str(data / "secret.key")),
        }
        # The two are found where they have to be, so the search does find what is there.
        assert while_running == expected
        assert hits(secrets, places([tmp_path])) == expected
        assert [
            oct(path.stat().st_mode & 0o777) for path in (data / "token", data / "secret.key")
        ] == [
            "0o600",
            "0o600",
        ]
        sent = str(hook.requests)
        for name in ("routing key", "bearer token", "header", "query of a URL"):
            assert GIVEN[name] in sent, "receivers still get their secrets"
        assert "7 secrets cannot be read, as their key is not here" in done.output


@pytest.mark.nightly
@pytest.mark.skipif(find_programs() is None, reason="install postgresql")
def test_no_secret_is_in_files_and_logs_of_separate_processes_on_postgresql(tmp_path):
    with receiver() as hook, mail_server() as mailbox:
        settings = settings_for(hook, mailbox.port)
        with Stack(tmp_path, store="postgresql", settings=settings) as stack:
            with closing(HttpClient(stack.api_ports[0], TOKEN)) as client:
                secrets = GIVEN | use(client.ask, hook)
            secrets |= {"root token": TOKEN, "secret key": SECRET_KEY}
            assert stack.database is not None
            stack.database.execute("CHECKPOINT")
            found = places([tmp_path, stack.database.directory])
            assert hits(secrets, found) == set()
            assert any(b"receiver 1" in content for content in found.values()), "rows are in there"
