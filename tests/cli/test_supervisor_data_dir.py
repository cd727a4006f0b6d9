"""A data directory that cannot be one is refused in one sentence, before anything starts."""

from pathlib import Path

import pytest

from app.cli import supervisor
from app.data_directory import make_data_dir
from app.errors import StartUpFailed
from app.settings import Settings


def test_file_as_data_directory_is_refused(tmp_path):
    file = tmp_path / "data"
    file.write_text("notes")
    for attempt in (
        lambda: Settings(data_dir=file).with_token(),
        lambda: supervisor.data_dir_lock(file).__enter__(),
    ):
        with pytest.raises(StartUpFailed) as refused:
            attempt()
        assert str(refused.value) == (
            f"{file} is a file, not a directory: choose another directory with --data-dir or "
            "PACELINE_DATA_DIR"
        )
    assert file.read_text() == "notes"


def test_data_directory_below_a_file_is_refused_with_the_files_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartUpFailed, match=f"^{tmp_path}/file is a file, not a directory"):
        make_data_dir(tmp_path / "file" / "a" / "b")


def test_data_directory_that_cannot_be_made_is_refused_with_the_reason():
    with pytest.raises(StartUpFailed, match=r"/proc/x cannot be made \(No such"):
        make_data_dir(Path("/proc/x"))
