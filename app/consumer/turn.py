"""What one turn changed in memory of one job, and how it is written down."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from app.alerts.changes import Change as AlertChange
from app.consumer.run import Run, RunKey
from app.consumer.saving import Outcome, save_alerts, save_window, wake_tellers
from app.consumer.silence import Silence
from app.consumer.workplace import Workplace
from app.diagnosis import history_codec
from app.ingest import spool
from app.ingest.queue import Message
from app.store import (
    counts,
    dead_letters,
    drops,
    histories,
    hosts,
    jobs,
    run_hosts,
    silent,
    watching,
)
from app.store import spool as spools
from app.store.dead_letters import DeadLetter
from app.store.engine import Connection
from app.store.spool import SpoolRow


@dataclass(slots=True)
class RunTurn:
    """What one turn changed of one run."""

    run: Run
    taken: list[spool.Taken] = field(default_factory=list)
    spooled_through: int = -1  # the last step in `taken`
    newest_step: int | None = None
    is_closed: bool = False
    has_state: bool = False  # whether the assembler's state was to be saved, too
    has_history: bool = False  # whether a window has closed, so that there is more to remember


@dataclass(slots=True)
class Turn:
    """What one turn changed of one job, all of which is committed at once or not at all.

    `alerts` are changes in their order, `silences` what is new of who sends nothing, by run.
    """

    job_id: str
    runs: dict[RunKey, RunTurn] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    alerts: list[AlertChange] = field(default_factory=list)
    silences: dict[RunKey, Silence] = field(default_factory=dict)
    letters: list[DeadLetter] = field(default_factory=list)
    entry_ids: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not (self.runs or self.entry_ids or self.alerts or self.silences)

    def of(self, run: Run) -> RunTurn:
        """The part of this run."""
        if run.key not in self.runs:
            self.runs[run.key] = RunTurn(run)
        return self.runs[run.key]


def save(conn: Connection, work: Workplace, turns: Collection[Turn]) -> list[Message]:
    """Write everything in the open transaction; returns what to announce once it is committed."""
    messages: list[Message] = []
    rows = [row for turn in turns for each in turn.runs.values() if (row := _spooled(each))]
    spools.add(conn, rows)
    for turn in turns:
        messages += [save_window(conn, work, outcome) for outcome in turn.outcomes]
        messages += _save_silences(conn, turn)
        if turn.alerts:
            messages += save_alerts(conn, turn.job_id, turn.alerts)
        for each in turn.runs.values():
            _save_run(conn, work, each)
        _bury(conn, turn)
    wake_tellers(conn, work, ((turn.job_id, each) for turn in turns for each in turn.alerts))
    return messages


def _save_silences(conn: Connection, turn: Turn) -> list[Message]:
    for key, each in turn.silences.items():
        silent.save(conn, *key, **each._asdict())
    return [{"event": "job", "job_id": job_id} for job_id, _ in turn.silences]


def _spooled(each: RunTurn) -> SpoolRow | None:
    if not each.taken:
        return None
    run = each.run
    run.turn += 1
    job_id, epoch = run.key
    return SpoolRow(job_id, epoch, run.turn, each.spooled_through, spool.pack(each.taken))


def _save_run(conn: Connection, work: Workplace, each: RunTurn) -> None:
    run = each.run
    each.has_state = each.has_state or run.assembler.is_dirty or each.is_closed
    if each.has_state:
        _save_state(conn, each)
    if each.has_history:
        _save_history(conn, run)
    counts.save(conn, *run.key, run.counts)
    if each.newest_step is not None:
        job_id, epoch = run.key
        now_s = work.unix_time()
        jobs.touch(conn, job_id, epoch=epoch, last_data_s=now_s, last_step=each.newest_step)
    if each.is_closed:
        watching.mark_closed(conn, *run.key)
    elif each.taken:
        watching.reopen(conn, *run.key)


def _save_history(conn: Connection, run: Run) -> None:
    through_step = int(run.history.steps[-1])
    histories.save(conn, *run.key, through_step=through_step, blob=history_codec.pack(run.history))


def _save_state(conn: Connection, each: RunTurn) -> None:
    run = each.run
    run.counts = replace(run.counts, lost_batches=run.assembler.roll.num_lost)
    spools.save_state(conn, *run.key, run.assembler.dump(run.turn))
    spools.forget(conn, *run.key, through_step=run.assembler.closed_through)
    if run.assembler.roll.has_new_drops:
        drops.save(conn, *run.key, run.assembler.roll.drops())
    if run.assembler.roll.has_new_hosts:
        known = run.assembler.roll.hosts()
        hosts.save(conn, *run.key, known, run.assembler.roll.placements())
        run_hosts.add(conn, *run.key, known.values())


def _bury(conn: Connection, turn: Turn) -> None:
    for letter in dead_letters.add(conn, turn.letters):
        counts.count_dead(conn, letter)
