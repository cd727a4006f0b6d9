"""What was promised: every batch that was answered 2xx, by its key, with all of its operations."""

from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from app.ingest import codec
from app.ingest.batch import OpBatch

Ints = NDArray[np.int64]
RunKey = tuple[str, int]  # job, epoch
BatchKey = tuple[str, int, int, int]  # job, epoch, rank, batch_seq

# The order of the rows of a table: step, dp_rank, stage, optype, seq_id.
COLUMNS = (
    *("step", "dp_rank", "stage", "optype", "seq_id"),
    *("rank", "mc", "mb_id", "start_ns", "duration_ns"),
)


@dataclass
class Obligations:
    """Batches as they were acknowledged; of two with one key, the first is owed."""

    resent: int = 0
    conflicts: int = 0
    rows: int = 0
    _hashes: dict[BatchKey, bytes] = field(default_factory=dict)
    _owed: dict[RunKey, list[Ints]] = field(default_factory=lambda: defaultdict(list))

    def owe(self, job: str, body: bytes) -> None:
        """This body was answered 2xx."""
        batch = codec.read(body)
        key = (job, batch.epoch, batch.rank, batch.batch_seq)
        digest = blake2b(body, digest_size=16).digest()
        if key in self._hashes:
            same = self._hashes[key] == digest
            self.resent += same
            self.conflicts += not same
            return
        self._hashes[key] = digest
        self.rows += batch.columns.num_ops
        self._owed[job, batch.epoch].append(_rows(batch))

    @property
    def batches(self) -> int:
        """Number of different ones."""
        return len(self._hashes)

    def runs(self, job: str) -> list[int]:
        """Epochs of the job of which something is owed."""
        return sorted(epoch for name, epoch in self._owed if name == job)

    def table(self, job: str, epoch: int) -> Ints:
        """[rows, columns] all operations owed of one run, in canonical order."""
        owed = self._owed.get((job, epoch), [])
        return in_order(np.concatenate([np.empty((0, len(COLUMNS)), np.int64), *owed]))


def in_order(rows: Ints) -> Ints:
    """Rows by step, dp_rank, stage, optype, seq_id."""
    return rows[np.lexsort(rows.T[:5][::-1])]


def _rows(batch: OpBatch) -> Ints:
    columns = batch.columns
    of_worker = {"rank": batch.rank, "dp_rank": batch.dp_rank, "stage": batch.stage}
    rows = np.empty((columns.num_ops, len(COLUMNS)), np.int64)
    for number, name in enumerate(COLUMNS):
        rows[:, number] = of_worker[name] if name in of_worker else getattr(columns, name)
    return rows
