"""A name server that changes its mind, real from the query to the connection."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def new_world():
    """The command that runs another one in a network and a file system view of its own."""
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *user, "--mount", "--net"]


def can_unshare():
    needed = all(shutil.which(name) for name in ("unshare", "ip", "mount"))
    return needed and not subprocess.run([*new_world(), "true"], capture_output=True).returncode


@pytest.mark.skipif(not can_unshare(), reason="this machine allows no network of one's own")
def test_name_that_rebinds_to_loopback_is_never_followed_there(tmp_path):
    program = [sys.executable, "-m", "tests.alerts.guard.rebinding_world", str(tmp_path)]
    done = subprocess.run(
        [*new_world(), *program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["outcome"] == {
        "first public, then loopback": ["204", "blocked", "blocked"],
        "each in turn": ["204", "blocked"] * 3,
        "both at once": ["blocked"],
        "public when it was saved": ["blocked"],
    }
    # One query a message: what was checked is what is connected to.
    asked = {"later.example": 4, "turns.example": 6, "both.example": 1, "saved.example": 2}
    assert seen["asked"] == asked
    assert seen["hits"] == {"public": 1 + 3 + 1, "trap": 0}
    assert seen["sprung"] == ["204", 1]
