"""Path of the published traces beside the repository; skips or fails without them."""

import os
from pathlib import Path

import pytest

SHARED_TRACES = Path(__file__).parent / ".." / ".." / "shared" / "traces"

# In CI what is missing is a failure: skipped checks would look like passed ones.
MAY_SKIP = not os.environ.get("CI") or bool(os.environ.get("PACELINE_TEST_WITHOUT_SHARED"))
needs_shared = pytest.mark.skipif(
    not SHARED_TRACES.is_dir() and MAY_SKIP,
    reason="the published traces are not beside the repository (../shared/traces)",
)
