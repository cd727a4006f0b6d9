import signal
import subprocess
import sys
import time

from app.consumer.context import MAX_WITHOUT_PROGRESS_S

_BEGIN = """
from app.consumer import watchdog
watchdog.MAX_WITHOUT_PROGRESS_S = watchdog._LOOK_EVERY_S = 0.2
mine = watchdog.Watchdog()
"""


def run(code):
    command = [sys.executable, "-c", _BEGIN + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def test_work_without_progress_ends_the_process_with_its_traceback():
    status, log = run("while True: pass")
    assert status == -signal.SIGPROF
    assert 'File "<string>", line 5 in <module>' in log


def test_a_wait_without_end_ends_the_process_with_its_traceback():
    status, log = run("import threading; threading.Event().wait()")
    assert status == -signal.SIGKILL
    assert "in wait" in log


def test_work_that_progresses_goes_on_and_a_stopped_watchdog_ends_nothing():
    works = "while time.process_time() < until: mine._restarted_s = 0; mine.restart()"
    code = f"import time; until = time.process_time() + 0.5\n{works}\nmine.stop(); until += 0.5\n"
    assert run(code + "while time.process_time() < until: pass")[0] == 0


def test_a_starved_thread_has_not_stood_still(monkeypatch):
    from app.consumer.watchdog import Watchdog

    used_s = [0.0]
    monkeypatch.setattr(time, "clock_gettime", lambda _clock: used_s[0])
    watchdog = Watchdog(end=lambda: None)
    watchdog.stop()
    now_s = time.monotonic()
    for _ in range(10):
        now_s += MAX_WITHOUT_PROGRESS_S / 2
        used_s[0] += 0.5  # a hundredth of a core
        assert not watchdog.has_stood_still(now_s)
    assert watchdog.has_stood_still(now_s + MAX_WITHOUT_PROGRESS_S)
