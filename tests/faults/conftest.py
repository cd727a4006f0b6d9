"""One whole Paceline for all of these tests; each test has its own jobs and heals the stack."""

import pytest

from tests.harness.stack import Stack, default_store


@pytest.fixture(scope="session")
def session_stack(tmp_path_factory):
    with Stack(
        tmp_path_factory.mktemp("whole"), store=default_store(), num_apis=2, num_consumers=2
    ) as stack:
        yield stack


@pytest.fixture
def stack(session_stack):
    """Every process runs without patches, and no proxy has a fault."""
    yield session_stack
    session_stack.restart_patched()
    session_stack.wait_until_ready()


@pytest.fixture
def name(request):
    """A name for the jobs of one test."""
    return request.node.name.removeprefix("test_").split("[")[0][:60].rstrip("_")
