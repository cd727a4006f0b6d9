"""Decodes damaged batches in a separate process, and measures memory and time."""

import json
import resource
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.engine.memory import release_large_blocks
from app.errors import PacelineError
from app.ingest.wire.codec import decode, encode, read_entry
from app.trace.job import Parallelism
from tests.harness.fuzz.bombs import bombs
from tests.harness.fuzz.payloads import Payload, Payloads

SIZES = Parallelism(dp_size=1, pp_size=1)
# Beyond what the process holds by then: larger allocations fail instead of exhausting the machine.
ROOM_BYTES = 1 << 30
MAX_REPORTED = 5
_WARM_UP = 2000


@dataclass(slots=True)
class FuzzFindings:
    """Results of many payloads; the first failures are listed."""

    by_status: Counter[int] = field(default_factory=Counter)
    slowest_ms: float = 0.0
    slowest_cpu_ms: float = 0.0
    slowest_kind: str = ""
    wrong: list[str] = field(default_factory=list)

    def note(self, payload: Payload, status: int, took_s: float, cpu_s: float) -> None:
        """Add a response."""
        self.by_status[status] += 1
        self.slowest_cpu_ms = max(self.slowest_cpu_ms, 1e3 * cpu_s)
        if 1e3 * took_s > self.slowest_ms:
            self.slowest_ms, self.slowest_kind = 1e3 * took_s, payload.kind

    def report(self, number: int, payload: Payload, reason: str) -> None:
        """Add a failure."""
        if len(self.wrong) < MAX_REPORTED:
            self.wrong.append(f"payload {number} ({payload.kind}): {reason[:300]}")

    def as_json(self) -> dict[str, Any]:
        """The figures."""
        return {
            "by_status": {str(status): self.by_status[status] for status in sorted(self.by_status)},
            "slowest_ms": self.slowest_ms,
            "slowest_cpu_ms": self.slowest_cpu_ms,
            "slowest_kind": self.slowest_kind,
            "wrong": self.wrong,
        }


def decode_in_process(seed: int, num_payloads: int) -> dict[str, Any]:
    """Figures of that many payloads, or by which signal the process died."""
    command = [sys.executable, "-m", __name__, str(seed), str(num_payloads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        return result_of(process)


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a decoding process printed, or by which signal it died."""
    printed, _ = process.communicate()
    if process.returncode:
        return {"crashed": process.returncode, "wrong": ["the reading process died"]}
    result: dict[str, Any] = json.loads(printed)
    return result


def decode_all(seed: int, num_payloads: int) -> dict[str, Any]:
    """Figures of that many payloads; `rss_growth_mb` is the peak beyond the start."""
    release_large_blocks()  # as the API does
    payloads, findings = Payloads(seed), FuzzFindings()
    bombs()  # creating them takes memory that reading does not
    for number in range(_WARM_UP):
        if number % 500:
            decode_status(payloads[number])
    before_bytes = reset_peak()
    limit_memory(ROOM_BYTES)
    for number in range(num_payloads):
        payload = payloads[number]
        began_s, cpu_began_s = time.perf_counter(), time.thread_time()
        try:
            status = decode_status(payload)
        except Exception as error:
            findings.report(number, payload, repr(error))
            status = 500
        cpu_s = time.thread_time() - cpu_began_s
        findings.note(payload, status, time.perf_counter() - began_s, cpu_s)
    growth_bytes = peak_bytes("self") - before_bytes
    return {"payloads": num_payloads, **findings.as_json(), "rss_growth_mb": growth_bytes / 1e6}


def decode_status(payload: Payload) -> int:
    """The API's status for the payload; an accepted one is also read like the consumer does."""
    try:
        accepted = decode(
            payload.body,
            payload.content_type,
            SIZES,
            content_encoding=payload.content_encoding,
            last_step=0,
        )
        read_entry(encode(accepted.batch))
    except PacelineError as error:
        json.dumps(str(error))
        return error.status
    return 202


def peak_bytes(process: str) -> int:
    """Peak memory of the process."""
    return _status_bytes(process, "VmHWM")


def reset_peak() -> int:
    """Reset the peak of this process; its memory now."""
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak (proc(5))
    return _status_bytes("self", "VmRSS")


def limit_memory(room_bytes: int) -> None:
    """Make allocations beyond this much more than now fail."""
    limit = _status_bytes("self", "VmSize") + room_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _status_bytes(process: str, name: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields[name].split()[0]) * 1024


def main() -> None:
    """Decode payloads in this process, which may crash, and print the figures."""
    seed, num_payloads = map(int, sys.argv[1:])
    sys.stdout.write(json.dumps(decode_all(seed, num_payloads)) + "\n")


if __name__ == "__main__":
    main()
