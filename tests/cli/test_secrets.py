"""`paceline secrets`, and secrets at `paceline migrate`."""

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from app.cli import app
from app.store.alerting import receivers
from app.store.credentials.sealing import new_key, parse_keys
from app.store.database import Store
from tests.store.factories import webhook_receiver

OLD, NEW = new_key(), new_key()


@pytest.fixture
def paceline(tmp_path, store_url):
    store = Store(store_url, keys=parse_keys(OLD, "test"))
    with store.write() as conn:
        receivers.add(conn, webhook_receiver("sealed"))
        receivers.add(conn, webhook_receiver("plain"))
        plain = text("UPDATE endpoints SET sealed = NULL, url = :url WHERE endpoint_id = 'plain'")
        conn.execute(plain, {"url": "https://receiver.example/plain"})
    store.close()

    def run(*arguments, key=None):
        environment = {} if key is None else {"PACELINE_SECRET_KEY": key}
        command = [*arguments, "--data-dir", str(tmp_path)]
        return CliRunner().invoke(app, command, env=environment)

    return run


def test_new_key_is_a_key():
    made = CliRunner().invoke(app, ["secrets", "new-key"]).stdout
    assert parse_keys(made, "stdout")


def test_migrate_encrypts_what_is_plain_and_says_so(paceline):
    assert "1 secrets are stored in plain, as there is no key" in paceline("migrate").stdout
    assert "1 secrets are encrypted now" in paceline("migrate", key=OLD).stdout
    assert paceline("migrate", key=OLD).stdout == "the database is up to date\n"


def test_rotation_is_shown_before_and_after(paceline):
    old, new = (parse_keys(key, "test").newest_id for key in (OLD, NEW))
    assert paceline("secrets", "show", key=f"{NEW},{OLD}").stdout.splitlines() == [
        f"newest key: {new}",
        f"encrypted with key {old}: 1",
        "not encrypted: 1",
        "not readable, as their key is not here: 0",
    ]
    done = paceline("secrets", "rotate", key=f"{NEW},{OLD}")
    assert done.stdout == "encrypted with the newest key: 2\n"
    assert f"encrypted with key {new}: 2" in paceline("secrets", "show", key=NEW).stdout


def test_rotation_without_the_old_key_or_any_says_what_to_do(paceline):
    paceline("migrate", key=OLD)
    refused = paceline("secrets", "rotate", key=NEW)
    assert refused.exit_code == 2
    assert "2 secrets are unchanged, as their key is not here" in refused.stderr
    refused = paceline("secrets", "rotate")
    assert refused.exit_code == 2
    assert "no key" in refused.stderr
