"""A run's silence as alert rules look at it: in words, and with what it holds up."""

from app import words
from app.alerts.facts import SilenceFacts
from app.consumer.run import Run
from app.consumer.silence import SENDING, Silence

_MOST_NAMED = 20


def silence_facts(run: Run, silence: Silence) -> SilenceFacts:
    """Who of the run sends nothing now."""
    roll, job = run.assembler.roll, run.assembler.job
    if silence == SENDING:
        return SilenceFacts(
            is_starting=not run.watch.has_begun,
            is_only_scored=run.is_only_scored,
            has_unheard=roll.has_unheard,
        )
    hosts, pp_size = roll.hosts(), job.parallelism.pp_size
    named = silence.silent_workers[:_MOST_NAMED]
    return SilenceFacts(
        stalled_since_s=silence.stalled_since_s,
        silent_since_s=silence.silent_since_s,
        names=tuple(words.worker(*divmod(worker, pp_size), hosts) for worker in named),
        num_silent=len(silence.silent_workers) or len(silence.silent_ranks),
        num_workers=job.parallelism.num_workers,
        num_gpus=job.num_gpus,
        last_step=run.last_step,
    )
