import pytest

from app.store import audit


@pytest.fixture
def add_entry(store):
    def add(action, *, project="default", actor="ops", detail=None, object_id="x"):
        with store.write() as conn:
            audit.add(
                conn,
                project=project,
                at_s=5.5,
                actor=actor,
                action=action,
                object_kind=action.partition(".")[0],
                object_id=object_id,
                detail=detail or {},
            )

    return add


def actions(found):
    return [each.action for each in found]


def test_audit_page_lists_one_project_newest_first(store, add_entry):
    for number in range(5):
        add_entry(f"silence.{number}")
    add_entry("silence.theirs", project="other")
    with store.read() as conn:
        first, cursor = audit.page(conn, "default", limit=3)
        rest, end = audit.page(conn, "default", cursor=cursor, limit=3)
    assert actions(first + rest) == [f"silence.{n}" for n in (4, 3, 2, 1, 0)]
    assert end is None


def test_audit_entry_has_actor_action_object_and_detail(store, add_entry):
    add_entry("silence.create", detail={"matchers": [{"label": "ä"}], "for_s": 0.1 + 0.2})
    add_entry("token.revoke", actor="another", object_id="t1")
    with store.read() as conn:
        [entry], _ = audit.page(conn, "default", object_kind="silence")
        assert actions(audit.page(conn, "default", actor="another")[0]) == ["token.revoke"]
        assert audit.page(conn, "default", object_kind="token", actor="ops") == ([], None)
    assert (entry.at_s, entry.actor, entry.action) == (5.5, "ops", "silence.create")
    assert (entry.object_kind, entry.object_id) == ("silence", "x")
    assert entry.detail == {"matchers": [{"label": "ä"}], "for_s": 0.1 + 0.2}


def test_audit_clips_long_texts(store, add_entry):
    add_entry(
        "a.b", actor="\0" * 500, object_id="\ud800", detail={"k" * 5000: ["v" * 5000, None, 1]}
    )
    with store.read() as conn:
        [entry], _ = audit.page(conn, "default")
    assert entry.actor == "�" * 255 + "…"
    [(key, values)] = entry.detail.items()
    assert [len(key), len(values[0]), values[1], values[2]] == [1000, 1000, None, 1]
