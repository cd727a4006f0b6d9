"""`paceline token`, directly on the store."""

import time

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.store import audit, tokens


@pytest.fixture
def paceline(tmp_path, store_url):
    """The command on a migrated store."""

    def run(*arguments):
        chosen = {"PACELINE_DATA_DIR": str(tmp_path), "PACELINE_DATABASE_URL": ""}
        return CliRunner().invoke(app, ["token", *arguments], env=chosen)

    return run


def create_token(paceline, *options):
    result = paceline("create", *options)
    assert result.exit_code == 0, result.stderr
    return tokens.parse_token(result.stdout.strip())


def test_a_token_is_printed_once_and_listed_without_its_secret(paceline, store):
    scopes = ("--scope", "read", "--scope", "ingest,write")
    options = (*scopes, "--name", "cluster A", "--project", "lab")
    text = create_token(paceline, *options, "--expires-days", "2")
    listed = paceline("list").stdout
    assert text.token_id in listed
    assert text.secret not in listed
    assert "lab      ingest,read,write  all  good until" in listed
    assert listed.rstrip().endswith("cluster A")
    with store.read() as conn:
        record = tokens.find(conn, text.token_id)
    assert record is not None
    assert record.digest == text.digest
    assert record.expires_s == pytest.approx(time.time() + 2 * 86_400, abs=60)


def test_list_filters_tokens_by_project(paceline):
    ours, theirs = (
        create_token(paceline, "--scope", "read", "--project", name) for name in ("a", "b")
    )
    listed = paceline("list", "--project", "a").stdout
    assert ours.token_id in listed
    assert theirs.token_id not in listed


def test_revoked_token_is_listed_as_revoked(paceline):
    text = create_token(paceline, "--scope", "ingest", "--job", "llm-70b")
    assert "ingest  llm-70b  good" in paceline("list").stdout
    result = paceline("revoke", text.token_id)
    assert result.exit_code == 0
    assert result.stdout == f"revoked: {text.token_id} (without a name) of default\n"
    assert "ingest  llm-70b  revoked" in paceline("list").stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("create", "--scope", "fly"), "no scope 'fly': want one or more of ingest, read"),
        (("create", "--scope", "read", "--job", "a"), "a token for one job has the scope ingest"),
        (("create", "--scope", "read", "--project", "A"), "project 'A': want at most 31"),
        (("create", "--scope", "read,fly"), "no scope 'fly': want one or more of ingest, read"),
        (("create", "--scope", "read", "--expires-days", "0"), "--expires-days 0: the token"),
        (("revoke", "nobody"), "no token 'nobody': paceline token list shows them all"),
    ],
)
def test_invalid_arguments_are_refused(paceline, arguments, reason):
    result = paceline(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"paceline: {reason}")


def test_unmigrated_store_is_refused_with_the_command(tmp_path):
    (tmp_path / "empty.db").touch()
    chosen = {"PACELINE_DATABASE_URL": f"sqlite:///{tmp_path / 'empty.db'}"}
    result = CliRunner().invoke(app, ["token", "list"], env=chosen)
    assert (result.exit_code, "run paceline migrate" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "command",
    [
        ("token", "list"),
        ("token", "create", "--scope", "read"),
        ("dead-letters", "list"),
        ("retention", "show"),
        ("backup", "nowhere.zip"),
    ],
)
def test_directory_without_a_store_is_refused(tmp_path, command):
    directory = tmp_path / "not-there"
    chosen = {"PACELINE_DATABASE_URL": ""}
    result = CliRunner().invoke(app, [*command, "--data-dir", str(directory)], env=chosen)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"paceline: no Paceline store in {directory}: name its")
    assert not list(tmp_path.iterdir())


def test_token_commands_are_in_the_audit_log(paceline, store):
    text = create_token(paceline, "--scope", "read", "--name", "cluster A", "--project", "lab")
    for _ in range(2):
        paceline("revoke", text.token_id)
    with store.read() as conn:
        records, _ = audit.page(conn, "lab")
    recorded = [(each.action, each.object_id, each.actor) for each in records]
    expected = [(f"token.{each}", text.token_id, "command line") for each in ("revoke", "create")]
    assert recorded == expected
    assert text.secret not in str(records)
