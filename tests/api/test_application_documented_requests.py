"""Requests by hand from the docs are accepted."""

import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent.parent
OPERATIONS = (ROOT / "docs/operations.md").read_text()
WIRE_FORMAT = (ROOT / "docs/wire-format.md").read_text()


def sent(text, job_id, path=""):
    """The body that is sent to a job's path."""
    bodies = re.findall(rf"-d '([^']*)' \\\n  \S*/jobs/{job_id}{path}\n", text)
    assert len(bodies) == 1
    return json.loads(bodies[0])


async def test_operations_page_requests_register_a_job_and_push(api):
    registered = await api.client.put("/api/v1/jobs/by-hand", json=sent(OPERATIONS, "by-hand"))
    assert registered.status_code == 201
    answer = await api.push(sent(OPERATIONS, "by-hand", "/ops"), "by-hand")
    assert (answer.status_code, answer.json()["accepted"]) == (202, 1)


async def test_wire_format_requests_register_a_job_and_push(api):
    job = sent(WIRE_FORMAT, "llm-70b")
    assert (await api.client.put("/api/v1/jobs/llm-70b", json=job)).status_code == 201
    batches = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", WIRE_FORMAT, re.S)]
    pushed = [batch for batch in batches if "batch_seq" in batch]
    # Two operations, in columns and in rows, and one collective of a group.
    for batch, num_rows in zip(pushed, (2, 2, 1), strict=True):
        answer = await api.push(batch)
        assert (answer.status_code, answer.json()["accepted"]) == (202, num_rows), answer.text
