"""Stored tokens: no secret, one project each, valid until expiry or revocation."""

import re

import pytest

from app.errors import InvalidRequest, TokenNotFound
from app.store import tokens
from app.store.tokens import SCOPES, NewToken


def made(store, **changes):
    wanted = NewToken(**{"project": "research", "name": "a", "scopes": ["read"], **changes})
    with store.write() as conn:
        return tokens.create(conn, wanted, now_s=100.0)


def found(store, token_id):
    with store.read() as conn:
        return tokens.find(conn, token_id)


def test_created_token_is_read_back_and_creates_its_project(store):
    record, text = made(store, scopes=["admin", "ingest"], expires_s=200.0)
    assert found(store, record.token_id) == record
    assert record.scopes == ("ingest", "admin")
    assert re.fullmatch(r"pl_[0-9A-Za-z]{10}_[0-9A-Za-z]{43}", text)
    parts = tokens.parse_token(text)
    assert parts is not None
    assert (parts.token_id, parts.digest) == (record.token_id, record.digest)
    assert parts.secret not in repr(record)


def test_a_project_is_made_once_and_has_many_tokens(store):
    ids = {made(store)[0].token_id for _ in range(3)}
    with store.read() as conn:
        assert {record.token_id for record in tokens.page(conn, "research")[0]} == ids
        assert tokens.page(conn, "default") == ([], None)
        assert {record.token_id for record in tokens.all_tokens(conn)} == ids


def test_revoking_a_token_again_keeps_the_first_time(store):
    record, _ = made(store)
    for now_s in (150.0, 160.0):
        with store.write() as conn:
            tokens.revoke(conn, "research", record.token_id, now_s=now_s)
    revoked = found(store, record.token_id)
    assert revoked.revoked_s == 150.0
    assert not revoked.is_good(140.0)


def test_another_projects_token_cannot_be_revoked(store):
    record, _ = made(store)
    with store.write() as conn, pytest.raises(TokenNotFound):
        tokens.revoke(conn, "default", record.token_id, now_s=150.0)
    assert found(store, record.token_id).is_good(150.0)


def test_token_is_valid_until_it_expires(store):
    record, _ = made(store, expires_s=200.0)
    assert record.is_good(199.9)
    assert not record.is_good(200.0)


def test_last_use_of_a_token_is_kept_to_the_minute(store):
    record, _ = made(store)
    for now_s in (179.0, 121.0, 119.0):
        with store.write() as conn:
            tokens.mark_used(conn, record.token_id, now_s=now_s)
    assert found(store, record.token_id).last_used_s == 120.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scopes": []}, "scopes: want one or more"),
        ({"name": "a\nb"}, "that can be printed"),
        ({"name": "\ud800"}, "that can be printed"),
        ({"scopes": ["ingest"], "job": "a/b"}, "job 'a/b': want"),
        ({"scopes": ["ingest", "read"], "job": "a"}, "ingest and no other"),
        ({"project": "A"}, "project 'A': want"),
        ({"project": "a/b"}, "project 'a/b': want"),
    ],
)
def test_invalid_tokens_are_refused(store, changes, reason):
    with pytest.raises(InvalidRequest, match=reason):
        made(store, **changes)


def test_scopes_are_known_by_name():
    assert tokens.checked_scopes(["read", "ingest"]) == ["ingest", "read"]
    assert tuple(tokens.checked_scopes(SCOPES)) == SCOPES
    with pytest.raises(InvalidRequest, match="no scope 'fly'"):
        tokens.checked_scopes(["fly"])


@pytest.mark.parametrize("text", ["", "pl_", "pl_a_b", "x" * 57, "pl_" + "x" * 54])
def test_text_that_is_no_token_is_not_parsed(text):
    assert tokens.parse_token(text) is None
