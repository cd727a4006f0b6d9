"""Spooled batches outlive the process, in order and within limits; damage loses only its batch."""

import errno
import logging
import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paceline_client.recording.wire import batch_of
from paceline_client.sending.spool import Spool
from paceline_client.sending.spool_files import (
    SpoolDamaged,
    SpoolPosition,
    position_bytes,
    position_of,
)

from app.ingest.assembly.rank_tracker import MAX_GAP
from tests.client.recorders import WITHIN_S, close_unreachable, recorder
from tests.example_counts import many

MB = 1 << 20


opened: list[Spool] = []


def spool(directory, *, run_key="run-1", rank=3, max_bytes=MB):
    found = Spool(directory, "my job", run_key, rank, max_bytes)
    opened.append(found)
    found.open()
    return found


def batch(number, num_ops=2):
    ops = [(number, "gc", 10**18 + at, 5, at, -1, at, {"tokens": at}) for at in range(num_ops)]
    return batch_of(ops, [(number, num_ops)], [(number, "eval")], number, number, {number})


def contents(found):
    """Comparable contents of a batch."""
    return None if found is None else (
        found.steps_done, found.step_kinds, found.dropped, found.optypes, found.codes,
        found.at_step, found.asides,
        {name: list(values) for name, values in found.columns.items()},
    )  # fmt: skip


def pop_all(found):
    steps = []
    while (head := found.head()) is not None:
        steps.append((found.next_seq, *head.done))
        found.pop(used_seq=True)
    return steps


def segments(directory):
    return sorted(directory.glob("*.seg"))


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.WARNING)
    yield
    while opened:
        opened.pop().close(keep=True)


def test_batch_is_unchanged_after_a_reopen(tmp_path):
    queue = spool(tmp_path)
    queue.put(batch(7))
    queue.close(keep=True)
    assert contents(spool(tmp_path).head()) == contents(batch(7))


def test_unused_batch_number_is_used_by_the_next_batch(tmp_path):
    queue = spool(tmp_path)
    queue.put(batch(0))
    queue.put(batch(1))
    queue.head()
    queue.pop(used_seq=False)
    queue.close(keep=True)
    assert pop_all(spool(tmp_path)) == [(0, 1)]


@settings(many(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["put", "pop", "restart"]), max_size=25), st.integers(1, 3))
def test_spool_is_a_queue_across_restarts(tmp_path, actions, num_ops):
    directory = tmp_path / "spool"
    shutil.rmtree(directory, ignore_errors=True)
    queue, wanted, number, seq = spool(directory), [], 0, 0
    queue._segment_bytes = 400  # a few batches
    for action in actions:
        if action == "put":
            queue.put(batch(number, num_ops))
            wanted.append(number)
            number += 1
        elif action == "pop" and wanted:
            assert queue.head().done == {wanted.pop(0)}
            queue.pop(used_seq=True)
            seq += 1
        elif action == "restart":
            queue.close(keep=True)
            queue = spool(directory)
            queue._segment_bytes = 400
    assert pop_all(queue) == [(seq + at, step) for at, step in enumerate(wanted)]
    assert segments(directory) == []
    queue.close(keep=True)


def test_full_spool_has_no_room_until_batches_are_removed(tmp_path):
    queue = spool(tmp_path, max_bytes=2000)
    queue._segment_bytes = 500
    number = 0
    while queue.has_room:
        queue.put(batch(number))
        number += 1
    size = sum(path.stat().st_size for path in segments(tmp_path))
    assert 2000 <= size < 2500
    while not queue.has_room:
        queue.head()
        queue.pop(used_seq=True)
    assert len(segments(tmp_path)) >= 2
    queue.close(keep=True)


def test_torn_segment_end_loses_only_its_own_batch(tmp_path):
    queue = spool(tmp_path)
    for number in range(3):
        queue.put(batch(number))
    queue.close(keep=True)
    [segment] = segments(tmp_path)
    whole = segment.read_bytes()
    third = len(whole) - len(whole) // 3
    for end in range(third, len(whole), 7):
        segment.write_bytes(whole[:end])
        again = spool(tmp_path)
        again.put(batch(9))
        assert [step for _, step in pop_all(again)] == [0, 1, 9]
        again.close(keep=True)
        for path in tmp_path.iterdir():
            path.unlink()
        queue = spool(tmp_path)  # resets the position
        queue.close(keep=True)
        segment.write_bytes(whole)


@pytest.mark.parametrize("at", range(0, 300, 43))
def test_corrupted_byte_loses_at_most_its_own_batch(tmp_path, at):
    queue = spool(tmp_path)
    queue._segment_bytes = 1
    for number in range(3):
        queue.put(batch(number))
    queue.close(keep=True)
    second = segments(tmp_path)[1]
    changed = bytearray(second.read_bytes())
    changed[at % len(changed)] ^= 0x10
    second.write_bytes(changed)
    again = spool(tmp_path)
    steps = [step for _, step in pop_all(again)]
    assert steps in ([0, 2], [0, 1, 2])  # the CRC does not cover the count of operations
    again.close(keep=True)


def states(directory):
    """The two position files, the newest first."""
    return sorted(
        directory.glob("*.state?"),
        key=lambda path: position_of(path.read_bytes()).turn,
        reverse=True,
    )


TORN = {"empty": b"", "half": None, "gone": b"gone", "nonsense": b"nonsense"}


def tear(path, how):
    if how == "gone":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] if how == "half" else TORN[how])


@pytest.mark.parametrize("how", TORN)
@pytest.mark.parametrize("num_popped", [1, 2, 5])
def test_torn_position_falls_back_to_the_previous_one(tmp_path, how, num_popped):
    queue = spool(tmp_path)
    for number in range(6):
        queue.put(batch(number))
    for _ in range(num_popped):
        queue.head()
        queue.pop(used_seq=True)
    queue.close(keep=True)
    tear(states(tmp_path)[0], how)
    again = spool(tmp_path)
    # The last batch may be sent again under its number.
    assert pop_all(again) == [(number, number) for number in range(num_popped - 1, 6)]


@pytest.mark.parametrize("how", TORN)
def test_torn_position_of_an_empty_spool_skips_batch_numbers(tmp_path, how):
    queue = spool(tmp_path)
    for number in range(3):
        queue.put(batch(number))
    pop_all(queue)
    queue.close(keep=True)
    tear(states(tmp_path)[0], how)
    assert spool(tmp_path).next_seq > 3


def test_position_older_than_the_segments_skips_batch_numbers(tmp_path):
    queue = spool(tmp_path)
    queue._segment_bytes = 1
    for number in range(3):
        queue.put(batch(number))
    queue.close(keep=True)
    segments(tmp_path)[0].unlink()  # as after a power loss
    again = spool(tmp_path)
    assert [step for _, step in pop_all(again)] == [1, 2]
    assert again.next_seq > 3


@pytest.mark.parametrize("how", sorted({*TORN} - {"gone"}))
@pytest.mark.parametrize("is_empty", [False, True])
def test_two_damaged_positions_skip_every_possibly_used_number(tmp_path, how, is_empty, caplog):
    queue = spool(tmp_path)
    for number in range(3):
        queue.put(batch(number))
    if is_empty:
        pop_all(queue)
    queue.close(keep=True)
    for state in states(tmp_path):
        tear(state, how)
    again = spool(tmp_path)
    assert pop_all(again) == []
    assert again.next_seq == MAX_GAP
    assert again.damaged_ops == (0 if is_empty else 6)
    assert ("is damaged: 6 operations of an earlier run are lost" in caplog.text) == (not is_empty)
    assert "nothing is kept" not in caplog.text
    again.put(batch(3))
    assert len(segments(tmp_path)) == 1


def test_restart_without_a_spool_skips_numbers_used_elsewhere(tmp_path):
    (tmp_path / "file").write_text("")
    for directory in (tmp_path, tmp_path / "file"):
        elsewhere = Spool(directory, "my job", "run-1", 3, MB, is_restart=True)
        opened.append(elsewhere)
        elsewhere.open()
        assert elsewhere.next_seq == MAX_GAP
    opened.pop(0).close(keep=True)
    again = Spool(tmp_path, "my job", "run-1", 3, MB, is_restart=True)
    again.open()
    assert again.next_seq == MAX_GAP  # not skipped again
    again.close(keep=True)


def test_run_new_to_the_server_starts_at_batch_number_0(paceline, tmp_path):
    paceline.registrations.append((201, b'{"epoch": 4}', {}))
    queue = Spool(tmp_path, "my job", "run-1", 3, MB, is_restart=True)
    queue.open()
    queue.close(keep=True)
    run = recorder(paceline.url, spool_dir=tmp_path)
    with run.step(1), run.op("gc"):
        pass
    assert run.flush(WITHIN_S)
    run.close()
    assert [batch.batch_seq for batch in paceline.batches] == [0]


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="links are followed on this system")
def test_spool_files_are_private_and_symlinks_not_followed(tmp_path, caplog):
    before = os.umask(0)
    try:
        queue = spool(tmp_path)
        queue.put(batch(0))
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    queue.close(keep=True)
    mine = tmp_path / "mine"
    mine.write_bytes(b"precious")
    [lock] = tmp_path.glob("*.lock")
    for path in (lock, *states(tmp_path), *segments(tmp_path)):
        path.unlink()
        path.symlink_to(mine)
    spool(tmp_path).put(batch(1))
    assert mine.read_bytes() == b"precious"
    assert "batches are not spooled to" in caplog.text


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_no_position(content):
    with pytest.raises(SpoolDamaged):
        position_of(content)


def test_position_round_trips_and_an_altered_bit_is_detected():
    written = position_bytes(SpoolPosition(3, 77, 12, 5))
    assert position_of(written) == (3, 77, 12, 5)
    for at in range(len(written)):
        with pytest.raises(SpoolDamaged):
            position_of(written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :])


def test_only_batches_of_other_runs_of_this_rank_are_removed(tmp_path, caplog):
    runs = [("run-1", 3), ("run-1", 4), ("run-0", 5)]
    for run_key, rank in runs:
        queue = spool(tmp_path, run_key=run_key, rank=rank)
        queue.put(batch(0))
        queue.close(keep=True)
    spool(tmp_path, run_key="run-2", rank=3).close(keep=True)
    assert len(segments(tmp_path)) == 2
    [warning] = caplog.messages
    assert "removed 2 operations of an earlier run" in warning
    assert pop_all(spool(tmp_path, run_key="run-1", rank=4)) == [(0, 0)]


def test_two_recorders_of_one_rank_do_not_share_a_spool(tmp_path, caplog):
    first, second = spool(tmp_path), spool(tmp_path)
    second.put(batch(1))
    assert segments(tmp_path) == []
    assert second.head().done == {1}  # in memory
    assert not second.has_room
    assert "in use by another recorder" in caplog.text
    assert second.close(keep=True) == 2
    first.close(keep=True)


def test_failing_disk_falls_back_to_memory(tmp_path, caplog, monkeypatch):
    queue = spool(tmp_path)
    queue.put(batch(0))

    def full(record, num_ops):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(queue, "_append", full)
    queue.put(batch(1))
    assert not queue.has_room
    assert pop_all(queue) == [(0, 0), (1, 1)]
    assert queue.has_room
    assert "No space left on device" in caplog.text
    queue.close(keep=True)
    assert spool(tmp_path).next_seq == 2


def test_invalid_spool_directory_is_logged_and_not_used(tmp_path, paceline, caplog):
    (tmp_path / "file").write_text("")
    run = recorder(paceline.url, spool_dir=tmp_path / "file")
    with run.step(1), run.op("gc"):
        pass
    assert run.flush(WITHIN_S)
    run.close()
    assert paceline.steps_done == [(1, 1)]
    assert "batches are not spooled to" in caplog.text


def test_unsent_batches_are_sent_by_the_next_process_of_the_run(paceline, tmp_path):
    paceline.answers += [(503, b"", {})] * 200
    run = recorder(paceline.url, spool_dir=tmp_path)
    for step in range(20):
        with run.step(step), run.op("gc"):
            pass
    close_unreachable(run)
    assert run.dropped == 0
    assert paceline.batches == []
    paceline.answers.clear()
    again = recorder(paceline.url, spool_dir=tmp_path)
    with again.step(20), again.op("gc"):
        pass
    assert again.flush(WITHIN_S)
    again.close()
    # A request in flight at the first close may still arrive, under its own number.
    taken = {batch.batch_seq: batch.steps_done for batch in paceline.batches}
    assert [done for seq in sorted(taken) for done in taken[seq]] == [(n, 1) for n in range(21)]
    assert sorted(taken) == list(range(len(taken)))
    assert segments(tmp_path) == []


def test_flush_does_not_count_spooled_batches_as_delivered(tmp_path):
    run = recorder("http://127.0.0.1:1", spool_dir=tmp_path)
    with run.step(1), run.op("gc"):
        pass
    assert not any(run.flush(0.02) for _ in range(3))
    close_unreachable(run)


def test_refused_token_keeps_the_spool(paceline, tmp_path):
    run = recorder("http://127.0.0.1:1", spool_dir=tmp_path)
    with run.step(1), run.op("gc"):
        pass
    close_unreachable(run)
    refusal = b'{"code": "unauthorized", "detail": "no such token"}'
    paceline.registrations.append((401, refusal, {}))
    run = recorder(paceline.url, spool_dir=tmp_path)
    run._sender.join(WITHIN_S)
    run = recorder(paceline.url, spool_dir=tmp_path)
    assert run.flush(WITHIN_S)
    paceline.wait_for(lambda: paceline.steps_done == [(1, 1)], WITHIN_S)
    close_unreachable(run)


def test_superseded_run_leaves_no_spool(paceline, tmp_path):
    paceline.answers.append((409, b'{"code": "epoch_superseded"}', {}))
    run = recorder(paceline.url, spool_dir=tmp_path)
    with run.step(1), run.op("gc"):
        pass
    assert run.flush(WITHIN_S)
    run.close()
    assert segments(tmp_path) == []
    assert run.dropped_reasons == {"refused by the server": 1}


def test_failed_sender_leaves_its_operations_to_the_next_process(paceline, tmp_path):
    run = recorder(paceline.url, spool_dir=tmp_path)
    paceline.wait_for(lambda: paceline.puts, WITHIN_S)

    def fail_while_training_goes_on(*_request):
        run.record("gc", 2, 1, 1)
        raise RuntimeError("of a kind that nobody thought of")

    run._sender._transport.request = fail_while_training_goes_on
    with run.step(1), run.op("gc"):
        pass
    run._sender.join(WITHIN_S)
    run.close()
    assert run.dropped == 0
    again = recorder(paceline.url, spool_dir=tmp_path)
    paceline.wait_for(lambda: [step for step, _, _ in paceline.ops] == [1, 2], WITHIN_S)
    close_unreachable(again)
