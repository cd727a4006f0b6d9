"""Operations of a closed window, downloaded as files of a published trace."""

import io
import zipfile

import numpy as np
import pytest

from app.engine.report import analyse
from app.trace.readers.published import meta, trace_files
from tests.api import recorded

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b/windows"


@pytest.fixture
async def closed(api):
    """An API with one closed window of steps 8 and 9 of 2 x 2 workers, and an open one."""
    await api.register(labels={"times": "host"})
    recorded.save(api, recorded.window(8), recorded.window(10, state="open"))
    return api


def unpacked(content, folder):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        archive.extractall(folder)
    return folder / "trace-llm-70b-1-8.parquet"


async def test_download_equals_the_recorded_window(closed, tmp_path):
    answer = await closed.client.get(f"{PATH}/latest/trace")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/zip"
    named = 'attachment; filename="llm-70b-1-8.zip"'
    assert answer.headers["content-disposition"] == named
    path = unpacked(answer.content, tmp_path)
    found, stored = trace_files.read(path), recorded.window(8)
    assert found.steps == stored.steps
    assert found.job.parallelism == stored.job.parallelism
    assert found.trace.num_ops == stored.trace.num_ops
    np.testing.assert_allclose(analyse(found).slowdown, analyse(stored).slowdown, rtol=1e-6)
    about = meta.load(meta.usual_path(path))
    assert (about.run_id, about.labels) == ("run-1", {"times": "host"})


@pytest.mark.parametrize(("window", "status"), [("1-10", 409), ("1-99", 404)])
async def test_window_without_operations_has_no_download(closed, window, status):
    answer = await closed.client.get(f"{PATH}/{window}/trace")
    assert answer.status_code == status
