"""Output files are written atomically."""

import os
import threading

import pytest

from app.cli.output import printable, written_whole
from app.errors import InvalidRequest


def test_file_appears_only_after_its_block_ends(tmp_path):
    path = tmp_path / "out"
    with written_whole(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_failed_block_keeps_the_old_file(tmp_path, error):
    path = tmp_path / "out"
    path.write_text("old")

    def fail():
        with written_whole(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        fail()
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    assert path.read_text() == "old"


def test_full_disk_error_names_the_file(tmp_path):
    def fill():
        with written_whole(tmp_path / "out"):
            raise OSError(28, "No space left on device")

    with pytest.raises(InvalidRequest, match=r"out: cannot be written \(No space left"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_symlink_and_file_permissions_are_preserved(tmp_path):
    path, link = tmp_path / "out", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    with written_whole(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_new_file_has_the_default_permissions(tmp_path):
    (tmp_path / "other").write_text("")
    with written_whole(tmp_path / "out"):
        pass
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    with written_whole(path) as file:
        file.write(b"through")
    reader.join()
    assert read == [b"through"]
    assert path.is_fifo()


def test_printable_escapes_control_characters():
    assert printable("a\x1b[2J\nb\u202e é 前") == r"a\x1b[2J\nb\u202e é 前"
