"""Debian's Alertmanager, on loopback and with its files in a directory of its own."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import NoReturn, TypeVar

import pytest

_PROGRAM = "prometheus-alertmanager"
_START_WITHIN_S = 30.0
_LISTENING = re.compile(r'msg="Listening on" address=(?:127\.0\.0\.1):(\d+)')
_Found = TypeVar("_Found")
_CONFIG = """
route:
  receiver: on-call
  group_by: [job, project, rule]
  group_wait: 0s
  group_interval: 100ms
  repeat_interval: 1h
receivers:
  - name: on-call
    webhook_configs:
      - url: {hook_url}
        send_resolved: true
"""


@contextmanager
def alertmanager(folder: Path, *, hook_url: str, external_url: str) -> Iterator[str]:
    """Its address; what it is told it tells `hook_url`, by job, project and rule, at once.

    Skips where it is not installed, and fails in CI.
    """
    program = shutil.which(_PROGRAM)
    if program is None:
        _give_up(f"no Alertmanager: install Debian's {_PROGRAM} package")
    config, log = folder / "alertmanager.yml", folder / "log"
    config.write_text(_CONFIG.format(hook_url=hook_url))
    options = {
        "config.file": config,
        "storage.path": folder / "data",
        "web.listen-address": "127.0.0.1:0",
        "web.external-url": external_url,
        "web.route-prefix": "/",
        "cluster.listen-address": "",
    }
    command = [program, *(f"--{name}={value}" for name, value in options.items())]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            found = wait_for(lambda: _LISTENING.search(log.read_text()), log.read_text, server)
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            server.terminate()
            server.wait(_START_WITHIN_S)


def wait_for(
    look: Callable[[], _Found | None],
    describe: Callable[[], str],
    server: "subprocess.Popen[bytes] | None" = None,
) -> _Found:
    """What `look` finds once it finds something."""
    deadline_s = time.monotonic() + _START_WITHIN_S
    while (found := look()) is None:
        if time.monotonic() > deadline_s or (server is not None and server.poll() is not None):
            raise AssertionError(describe())
        select([], [], [], 0.02)
    return found


def _give_up(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
