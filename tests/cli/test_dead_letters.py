"""`paceline dead-letters` on a store in a directory and a real queue."""

import time

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.ingest.embedded import EmbeddedQueue
from app.ingest.redis.queue import RedisReader
from app.ingest.wire import codec
from app.store import dead_letters
from app.store.dead_letters import DeadLetter
from app.trace.job import shard_of
from tests.ingest.factories import step_batches

JOB = "default/llm"
BATCH = step_batches(5, [0])[0]
READABLE = codec.encode(BATCH)


@pytest.fixture
def paceline(tmp_path):
    def run(*arguments, **options):
        command = ["dead-letters", *arguments, "--data-dir", str(tmp_path)]
        return CliRunner().invoke(app, command, env={"PACELINE_REDIS_URL": ""}, **options)

    return run


@pytest.fixture
def queue(tmp_path):
    """Reads the job's entries from a queue as `paceline serve` runs it."""
    server = EmbeddedQueue(tmp_path)
    reader = RedisReader(server.start())

    def entries():
        return reader.read([shard_of(JOB, 4)], "me", count=64, block_s=0.0)

    yield entries
    reader.close()
    server.stop()


def save_dead_letters(store, *bodies):
    letters = [
        DeadLetter(JOB, 1, f"{n}-0", 4, 3, "a reason\x1b[2J", 1700000000.0, 1700000009.0, body)
        for n, body in enumerate(bodies, 1)
    ]
    with store.write() as conn:
        dead_letters.add(conn, letters)


def states(store):
    with store.read() as conn:
        return [letter.state for letter in dead_letters.page(conn)[0]]


def test_dead_letters_are_listed_with_an_escaped_reason(store, paceline):
    assert paceline("list").stdout == "no dead letters\n"
    save_dead_letters(store, READABLE, b"")
    first, second = paceline("list").stdout.splitlines()
    assert first == (
        "1  2023-11-14 22:13:29 UTC  default/llm epoch 1: 4 operations, delivered 3 times: "
        r"a reason\x1b[2J"
    )
    assert second.startswith("2  ")


def test_list_filters_dead_letters_by_state(store, paceline):
    save_dead_letters(store, READABLE, b"", b"x")
    with store.write() as conn:
        dead_letters.mark(conn, 2, "dropped", now_s=1.0)
    assert [line[0] for line in paceline("list").stdout.splitlines()] == ["1", "3"]
    assert paceline("list", "--state", "dropped").stdout.startswith("2 (dropped)")
    assert len(paceline("list", "--state", "any").stdout.splitlines()) == 3


def test_show_prints_operations_or_the_first_unreadable_bytes(store, paceline):
    save_dead_letters(store, READABLE, b"\xff\x1bnothing")
    shown = paceline("show", "1", "--rows", "1").stdout
    num_ops = BATCH.columns.num_ops
    assert "epoch 1, rank 0 (dp 0, stage 0)" in shown
    assert "forward-compute" in shown
    assert f"and {num_ops - 1} more" in shown
    unreadable = paceline("show", "2").stdout
    assert "cannot be read: " in unreadable
    assert "begins with ff 1b 6e" in unreadable
    assert paceline("show", "3").stderr.startswith("paceline: no dead letter 3")


def test_replayed_dead_letter_is_queued_again_and_marked(store, paceline, queue):
    save_dead_letters(store, READABLE, b"second", b"third")
    assert paceline("replay", "2").stdout == "1 replayed\n"
    assert [(entry.job_id, entry.body) for entry in queue()] == [(JOB, b"second")]
    assert states(store) == ["dead", "replayed", "dead"]
    assert paceline("replay", "--all").stdout == "2 replayed\n"
    assert [entry.body for entry in queue()] == [READABLE, b"third"]
    assert states(store) == ["replayed"] * 3
    with store.read() as conn:
        settled_s = dead_letters.summary(conn, 1).settled_s
    assert settled_s == pytest.approx(time.time(), abs=60)


def test_replay_without_a_queue_marks_nothing(store, paceline):
    save_dead_letters(store, READABLE)
    result = paceline("replay", "1")
    assert result.exit_code == 2
    assert "no event queue runs on" in result.stderr
    assert states(store) == ["dead"]


def test_drop_asks_for_confirmation(store, paceline):
    save_dead_letters(store, READABLE, b"second")
    assert paceline("drop", "--all", input="n\n").exit_code == 1
    assert states(store) == ["dead", "dead"]
    assert "drop 1 dead letters?" in paceline("drop", "2", input="y\n").stdout
    assert states(store) == ["dead", "dropped"]
    assert paceline("drop", "--all", "--yes").stdout == "1 dropped\n"
    assert states(store) == ["dropped", "dropped"]


def test_replay_and_drop_need_either_ids_or_all(store, paceline):
    save_dead_letters(store, READABLE)
    for command in (["replay"], ["replay", "1", "--all"], ["drop"], ["drop", "1", "--all"]):
        result = paceline(*command)
        assert result.exit_code == 2
        assert "--all" in result.stderr
    assert states(store) == ["dead"]


def test_unknown_dead_letter_id_drops_nothing(store, paceline):
    save_dead_letters(store, READABLE)
    assert paceline("drop", "1", "5", "--yes").exit_code == 2
    assert states(store) == ["dead"]


def test_unmigrated_database_is_refused_with_the_command(paceline, tmp_path):
    (tmp_path / "paceline.db").touch()
    assert "run paceline migrate" in paceline("list").stderr
