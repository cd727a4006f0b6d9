"""Files that were made to do harm when they are restored: all refused, and nothing is changed."""

import json
import struct
import zipfile

import pytest
from sqlalchemy import text

from app.errors import InvalidRequest
from app.store import backup as backups
from app.store.alerting import receivers
from app.store.backup import backup, restore
from app.store.credentials.sealing import SecretKeys, key_id
from app.store.database import Store
from tests.secret_keys import KEYS
from tests.store.credentials.test_resealing import HOOK, SECRET
from tests.store.factories import register, webhook_receiver

MANIFEST = "manifest.json"
JOBS = "tables/jobs.jsonl"


@pytest.fixture
def target(migrated_file, tmp_path):
    path = tmp_path / "target.db"
    path.write_bytes(migrated_file.read_bytes())
    store = Store(f"sqlite:///{path}", keys=KEYS)
    yield store
    store.close()


@pytest.fixture(scope="module")
def members(migrated_file, tmp_path_factory):
    """The members of a good backup of one job and one receiver."""
    path = tmp_path_factory.mktemp("good") / "source.db"
    path.write_bytes(migrated_file.read_bytes())
    store = Store(f"sqlite:///{path}", keys=KEYS)
    register(store)
    with store.write() as conn:
        receivers.add(conn, webhook_receiver("hook", url=HOOK, secrets=(SECRET,)))
    backup(store, path.with_name("good.zip"))
    store.close()
    with zipfile.ZipFile(path.with_name("good.zip")) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def refused(target, tmp_path):
    """Whether a file of these members is refused, and has changed nothing."""

    def refused(members, reason):
        file = tmp_path / "hostile.zip"
        write(file, members)
        return is_refused(target, file, reason)

    return refused


def write(file, members):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def is_refused(store, file, reason):
    with pytest.raises(InvalidRequest, match=reason):
        restore(store, file)
    with store.read() as conn:
        assert conn.execute(text("SELECT count(*) FROM jobs")).scalar_one() == 0
        assert conn.execute(text("SELECT count(*) FROM projects")).scalar_one() == 1
    return True


def changed(members, name, **values):
    """The members with other values in the first row of a table."""
    row = json.loads(members[name].splitlines()[0]) | values
    return members | {name: json.dumps(row).encode() + b"\n"}


def with_manifest(members, **values):
    manifest = json.loads(members[MANIFEST])
    return members | {MANIFEST: json.dumps(manifest | values).encode()}


def test_bomb_is_refused_before_it_is_unpacked(members, refused):
    assert refused(members | {JOBS: b" " * (64 << 20)}, r"67,108,864 bytes; it is a bomb|is a bomb")


def test_row_without_an_end_is_refused_at_its_limit(members, refused, monkeypatch):
    monkeypatch.setattr(backups, "_MAX_ROW_BYTES", 4096)
    row = json.loads(members[JOBS]) | {"job_id": "x" * 5000}
    assert refused(members | {JOBS: json.dumps(row).encode()}, "is longer than 4,096 bytes")


def test_huge_manifest_is_not_read(members, refused):
    assert refused(members | {MANIFEST: members[MANIFEST] + b" " * (1 << 20)}, "manifest is too")


@pytest.mark.parametrize("declared", [1, 2**31])
def test_wrong_declared_size_is_refused(target, members, tmp_path, declared):
    file = tmp_path / "hostile.zip"
    write(file, members)
    whole = bytearray(file.read_bytes())
    # The central directory's entry of the table: 20 bytes from its start are the two sizes.
    at = whole.index(b"PK\x01\x02", whole.index(b"PK\x01\x02"))
    while not whole[at + 46 :].startswith(JOBS.encode()):
        at = whole.index(b"PK\x01\x02", at + 4)
    whole[at + 24 : at + 28] = struct.pack("<I", declared)
    file.write_bytes(whole)
    assert is_refused(target, file, "no whole backup")


@pytest.mark.parametrize(
    "name",
    ["../../etc/cron.d/x", "/etc/passwd", "tables/../../x.jsonl", "tables/jobs.jsonl/", "C:\\x"],
)
def test_members_with_other_names_are_refused_and_nothing_is_unpacked(
    members, refused, tmp_path, name
):
    before = sorted(path.name for path in tmp_path.parent.iterdir())
    assert refused(members | {name: b"* * * * * root true\n"}, "holds other files")
    assert sorted(path.name for path in tmp_path.parent.iterdir()) == before


@pytest.mark.parametrize("name", ["jobs; DROP TABLE tokens", "sqlite_master", "shards", ""])
def test_tables_that_no_backup_has_are_refused(members, refused, name):
    rows = json.loads(members[MANIFEST])["rows"] | {name: 1}
    member = {f"tables/{name}.jsonl": b'{"version_num": "9999"}\n'}
    assert refused(with_manifest(members, rows=rows) | member, "names other tables")


def test_columns_that_the_table_lacks_are_refused(members, refused):
    row = {"job_id) VALUES ('x'); DROP TABLE tokens; --": 1}
    assert refused(changed(members, JOBS, **row), "a row of jobs has other columns")


@pytest.mark.parametrize(
    ("table", "values"),
    [
        ("jobs", {"epoch": "1"}),
        ("jobs", {"epoch": 1.5}),
        ("jobs", {"epoch": True}),
        ("jobs", {"epoch": 2**63}),
        ("jobs", {"epoch": None}),
        ("jobs", {"job_id": 7}),
        ("jobs", {"job_id": "x" * 129}),
        ("jobs", {"job_id": "a\0b"}),
        ("runs", {"registered_s": "now"}),
        ("endpoints", {"is_enabled": 1}),
        ("endpoints", {"sealed": ["v1"]}),
        ("endpoints", {"sealed": None}),
    ],
    ids=str,
)
def test_value_of_another_type_is_refused(members, refused, table, values):
    bad = changed(members, f"tables/{table}.jsonl", **values)
    assert refused(bad, f"{table} has no right value for {next(iter(values))}")


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b"{}", b"[]", b"null", b'{"job_id": NaN}', b"\xff\xfe", b"{" * 50_000]
)
def test_rows_that_are_no_objects_of_the_table_are_refused(members, refused, line):
    assert refused(members | {JOBS: line + b"\n"}, "no whole backup")


def test_row_of_a_job_that_is_not_there_is_refused(members, refused):
    assert refused(changed(members, "tables/runs.jsonl", job_id="nobody/x"), "breaks a rule")


@pytest.mark.parametrize("keep", [0.2, 0.999])
def test_truncated_file_is_refused(target, members, tmp_path, keep):
    file = tmp_path / "hostile.zip"
    write(file, members)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * keep)])
    assert is_refused(target, file, "no whole backup")


def test_changed_bytes_never_pass_unnoticed_nor_end_in_a_traceback(target, members, tmp_path):
    file = tmp_path / "hostile.zip"
    write(file, members)
    whole = file.read_bytes()
    at = whole.index(JOBS.encode()) + len(JOBS)  # where the packed rows of the job begin
    for offset in range(0, 40, 4):
        changed_bytes = bytearray(whole)
        changed_bytes[at + offset] ^= 0x55
        file.write_bytes(changed_bytes)
        assert is_refused(target, file, "no whole backup")


def test_encrypted_member_is_refused(target, members, tmp_path):
    file = tmp_path / "hostile.zip"
    write(file, members)
    whole = bytearray(file.read_bytes())
    for sign, flags_at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := whole.find(sign, at + 1)) >= 0:
            whole[at + flags_at] |= 1
    file.write_bytes(whole)
    assert is_refused(target, file, "no whole backup")


def test_backup_has_no_secret_and_needs_the_key(target, members, tmp_path):
    assert SECRET.encode() not in b"".join(members.values())
    assert HOOK.encode() not in b"".join(members.values())
    write(tmp_path / "good.zip", members)
    restore(target, tmp_path / "good.zip")
    with target.read() as conn:
        assert receivers.get(conn, "default", "hook").url == HOOK
    without = Store(f"sqlite:///{tmp_path / 'target.db'}", keys=SecretKeys([b"k" * 32]))
    with without.read() as conn:
        locked = receivers.get(conn, "default", "hook").locked
    without.close()
    assert locked is not None
    assert key_id(b"k" * 32) not in locked
