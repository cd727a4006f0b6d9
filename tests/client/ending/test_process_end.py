"""What a real process reports of its own end, and that its exit status stays what it was."""

import signal

import pytest

from tests.client.ending.trainings import BY_SIGTERM, FAILED, TERMINATED, WATCHERS, ended


@pytest.mark.parametrize(
    ("last_lines", "status", "report"),
    [
        ("", 0, {"outcome": "finished"}),
        (
            "raise ValueError('of <this>\\n kind')",
            1,
            {**FAILED, "error_type": "ValueError", "message": "of <this>\n kind"},
        ),
        (BY_SIGTERM, -signal.SIGTERM, TERMINATED),
        pytest.param(
            "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)",
            -signal.SIGINT,
            {"outcome": "terminated", "signal": signal.SIGINT},
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_an_end_is_reported_once_and_has_its_own_exit_status(paceline, last_lines, status, report):
    assert ended(paceline, last_lines) == (status, [report])


def test_a_killed_process_is_reported_by_its_watcher_without_a_secret_in_its_command(paceline):
    script = """
    [command] = wait_for_watchers(1).values()
    if sys.argv[2].encode() in command:
        os._exit(9)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    status, [report] = ended(paceline, WATCHERS + script)
    # On Linux before 6.15 it depends on who asks the kernel first: test_exit_status.py.
    assert status == -signal.SIGKILL
    assert report in ({"outcome": "killed", "signal": signal.SIGKILL}, {"outcome": "ended"})


def test_children_report_nothing_and_a_closed_recorder_has_finished_whatever_comes_then(paceline):
    status, reports = ended(
        paceline,
        """
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        child.join()
        if child.exitcode != -signal.SIGTERM:
            os._exit(9)
        run.close()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert (status, reports) == (-signal.SIGKILL, [{"outcome": "finished"}])


@pytest.mark.nightly
def test_a_child_that_gets_sigterm_as_soon_as_it_is_forked_is_not_its_parent(paceline):
    status, reports = ended(
        paceline,
        """
        child = ctypes.PyDLL(None).fork()  # nothing of Python's or Paceline's own runs in it first
        if not child:
            os.kill(os.getpid(), signal.SIGTERM)
        os.waitpid(child, 0)
        run.close()
        """,
    )
    assert (status, reports) == (0, [{"outcome": "finished"}])


def test_the_error_file_of_torchrun_names_the_exception_of_a_killed_process(paceline, tmp_path):
    file = tmp_path / "error.json"
    status, [report] = ended(
        paceline,
        f"""
        import json
        told = {{"message": {{"message": "RuntimeError: NCCL: gone", "extraInfo": {{}}}}}}
        open({str(file)!r}, "w").write(json.dumps(told))
        os.kill(os.getpid(), signal.SIGABRT)
        """,
        before=f"import os\nos.environ['TORCHELASTIC_ERROR_FILE'] = {str(file)!r}",
    )
    assert status == -signal.SIGABRT
    assert (report["outcome"], report["error_type"], report["message"]) == (
        "failed",
        "RuntimeError",
        "NCCL: gone",
    )
