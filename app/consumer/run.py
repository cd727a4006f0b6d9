"""One run of a job as its consumer has it in memory: rebuilt from the store at any time."""

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import structlog

from app.consumer.silence import SENDING, Silence, Watch
from app.consumer.workplace import Workplace
from app.diagnosis import history_codec
from app.diagnosis.history import History
from app.ingest import codec, spool
from app.ingest.assembler import Added, Before, RunAssembler
from app.ingest.batch import OpBatch
from app.ingest.cursor import NO_STEP
from app.store import counts, histories, hosts, jobs, silent, watching, windows
from app.store import spool as spools
from app.store.counts import Counts
from app.store.engine import Connection, Store
from app.trace.ops import OpTypes

log = structlog.get_logger()

RunKey = tuple[str, int]  # job_id, epoch
# Runs that began so many times the longest start before one may have failed at their own starts;
# ones that began earlier were told of then.
STARTS_ALIKE = 2
_DIGEST_BITS = 63  # as many as a signed integer holds


@dataclass(slots=True)
class Run:
    """The assembler of a run, and what is counted, watched and remembered beside it.

    `turn` numbers the commits that took batches of it; `history` is of its closed windows, and
    `last_step` the last one that a worker has reported. Of a run that `is_only_scored` scores came
    and never an operation: nobody waits for one.
    """

    key: RunKey
    assembler: RunAssembler
    counts: Counts
    turn: int
    watch: Watch
    history: History
    told: Silence = SENDING
    used_s: float = 0.0
    last_step: int | None = None
    is_only_scored: bool = False

    @property
    def is_at_first_steps(self) -> bool:
        """Whether no step is whole so far, nor so many were given up that none will be."""
        assembler = self.assembler
        return assembler.longest_span_s is None and assembler.closed_through == NO_STEP

    def add(self, batch: OpBatch, body: bytes | bytearray, now_s: float, unix_s: float) -> Added:
        """Take a batch and count its operations."""
        added = self.assembler.add(batch, now_s, digest(body))
        if (
            added.verdict != "stranger" and not batch.is_alone
        ):  # a rank that does not exist must not be missed later
            self.watch.heard(batch.rank, now_s, unix_s)
        self.used_s = now_s
        if batch.newest_step is not None:
            self.last_step = max(self.last_step or 0, batch.newest_step)
        self.counts = _counted(self.counts, batch, added)
        return added


def digest(body: bytes | bytearray) -> int:
    """What tells batches of the same number apart."""
    return int.from_bytes(blake2b(body, digest_size=8).digest()) >> (64 - _DIGEST_BITS)


def load(conn: Connection, work: Workplace, key: RunKey) -> Run:
    """The run as the store has it.

    Raises:
        JobNotFound: no such run registered.
    """
    registration = jobs.run(conn, *key)
    now_s = work.monotonic()
    rows = spools.load(conn, *key)
    assembler = RunAssembler.restore(
        registration.job,
        key[1],
        work.rules,
        lambda first_step: _stored(work.store, key, first_step),
        blob=spools.load_state(conn, *key),
        before=(
            _before(turn, taken, registration.op_types)
            for turn, blob in rows
            for taken in spool.unpack(blob)
        ),
        hosts=hosts.load(conn, *key),
        placements=hosts.placements(conn, *key),
        now_s=now_s,
    )
    known = (cursor.rank for cursor in assembler.roll.cursors if not cursor.is_alone)
    heard = watching.heard(conn, *key)
    # A job that fails at each start registers again and again, and nothing ever comes of it.
    since_s = watching.starting_since(conn, *key, within_s=STARTS_ALIKE * work.start_within_s)
    waited_s = max(0.0, work.unix_time() - since_s)
    turn = max([assembler.turn, *(turn for turn, _ in rows)])
    told = Silence(*silent.load(conn, *key))
    return Run(
        key,
        assembler,
        counts.load(conn, *key),
        turn,
        Watch(now_s, heard.registered_s, known, heard.last_data_s, told, waited_s),
        _history(conn, key),
        told,
        now_s,
        _last_step(conn, key),
    )


def _last_step(conn: Connection, key: RunKey) -> int | None:
    job_id, epoch = key
    record = jobs.get(conn, job_id)
    return record.last_step if record.epoch == epoch else None


def _history(conn: Connection, key: RunKey) -> History:
    blob = histories.load(conn, *key)
    try:
        return History() if blob is None else history_codec.unpack(blob)
    except ValueError as error:
        # The windows are worth more than what is remembered of them: it grows again.
        log.warning("history forgotten", job=key[0], epoch=key[1], reason=str(error))
        return History()


def _before(turn: int, taken: spool.Taken, op_types: OpTypes) -> Before:
    plain = codec.opened(taken.body)
    batch = codec.of_parsed(codec.parsed(plain), op_types)
    return Before(turn, batch, digest(plain), taken.dropped)


def _stored(store: Store, key: RunKey, first_step: int) -> bytes:
    job_id, epoch = key
    with store.read() as conn:
        blob = windows.trace(conn, job_id, f"{epoch}-{first_step}")
    if blob is None:
        raise LookupError(f"the operations of window {epoch}-{first_step} are gone")
    return blob


def _counted(before: Counts, batch: OpBatch, added: Added) -> Counts:
    if batch.num_group_rows:
        before = replace(before, in_groups=_counted_in_groups(before, batch, added))
    num_ops = batch.columns.num_ops
    if added.verdict == "duplicate":
        return replace(before, duplicate=before.duplicate + num_ops)
    if added.verdict == "conflict":
        sample: dict[str, Any] = {"rank": batch.rank, "batch_seq": batch.batch_seq}
        return replace(before, conflict=before.conflict + num_ops, last_conflict=sample)
    return replace(
        before,
        accepted=before.accepted + num_ops - added.num_late,
        late=before.late + added.num_late,
    )


def _counted_in_groups(before: Counts, batch: OpBatch, added: Added) -> dict[str, int]:
    if added.verdict == "new":
        new = added.groups._asdict()
    else:
        is_stranger = added.verdict == "stranger"
        new = {"late" if is_stranger else "duplicate": batch.num_group_rows}
    names = ("accepted", "duplicate", "late", "refused")
    return {name: (before.in_groups or {}).get(name, 0) + new.get(name, 0) for name in names}
