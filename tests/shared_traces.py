"""Path of the published traces beside the repository; skips or fails without them."""

import os
from pathlib import Path

import pytest

SHARED_TRACES = Path(__file__).parent / ".." / ".." / "shared" / "traces"

# In CI a missing trace is a failure: skipped checks would look like passed ones.
needs_shared = pytest.mark.skipif(
    not SHARED_TRACES.is_dir() and not os.environ.get("CI"),
    reason="the published traces are not beside the repository (../shared/traces)",
)
