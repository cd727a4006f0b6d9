"""`paceline secrets`, and secrets at `paceline migrate`."""

import pytest
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
        receivers.add(conn, webhook_receiver("a"))
        receivers.add(conn, webhook_receiver("b"))
    store.close()

    def run(*arguments, key=None):
        environment = {} if key is None else {"PACELINE_SECRET_KEY": key}
        command = [*arguments, "--data-dir", str(tmp_path)]
        return CliRunner().invoke(app, command, env=environment)

    return run


def test_new_key_is_a_key():
    made = CliRunner().invoke(app, ["secrets", "new-key"]).stdout
    assert parse_keys(made, "stdout")


def test_migrate_says_which_keys_are_missing(paceline):
    assert "2 secrets cannot be read, as their key is not here" in paceline("migrate").stdout
    assert paceline("migrate", key=OLD).stdout == "the database is up to date\n"


def test_rotation_is_shown_before_and_after(paceline):
    old, new = (parse_keys(key, "test").newest_id for key in (OLD, NEW))
    assert paceline("secrets", "show", key=f"{NEW},{OLD}").stdout.splitlines() == [
        f"newest key: {new}",
        f"encrypted with key {old}: 2",
        "not readable, as their key is not here: 0",
    ]
    done = paceline("secrets", "rotate", key=f"{NEW},{OLD}")
    assert done.stdout == "encrypted with the newest key: 2\n"
    assert f"encrypted with key {new}: 2" in paceline("secrets", "show", key=NEW).stdout


def test_rotation_without_the_old_key_or_any_says_what_to_do(paceline):
    refused = paceline("secrets", "rotate", key=NEW)
    assert refused.exit_code == 2
    assert "2 secrets are unchanged, as their key is not here" in refused.stderr
    refused = paceline("secrets", "rotate")
    assert refused.exit_code == 2
    assert "no key" in refused.stderr
