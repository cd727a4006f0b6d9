"""Everything Paceline can refuse to do, and the HTTP status each refusal becomes.

A class has the status of its base unless it gives one; `code` is what programs go by.
"""

from collections.abc import Sequence
from typing import ClassVar


class PacelineError(Exception):
    """Base of every error raised on purpose; the message is safe to show to a caller."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"


class BadRequest(PacelineError):
    """The request's bytes cannot be decoded."""

    status = 400
    code = "malformed"


class Unauthorised(PacelineError):
    """No token, or one that is not known."""

    status = 401
    code = "unauthorised"


class Forbidden(PacelineError):
    """The caller is known and may not do this."""

    status = 403
    code = "forbidden"


class NotFound(PacelineError):
    """The thing named in the request does not exist."""

    status = 404
    code = "not_found"
    words: ClassVar[str] = "{}"  # the message, with places for the names

    def __init__(self, *names: str) -> None:
        super().__init__(self.words.format(*names))


class AlertNotFound(NotFound):
    """The project has no such alert, or it is at rest."""

    code = "alert_not_found"
    words = "no alert {!r} is pending or fires: list them with GET /api/v1/alerts"


class AnnotationNotFound(NotFound):
    """The project, or the job, has no such annotation."""

    code = "annotation_not_found"
    words = "no annotation {!r}: list them with GET /api/v1/annotations"


class ShareLinkNotFound(NotFound):
    """The project has no such share link, or nothing is shared under this one."""

    code = "share_not_found"

    def __init__(self, share_id: str | None = None) -> None:
        if share_id is None:
            super().__init__("nothing is shared under this link: it has expired, or was revoked")
        else:
            super().__init__(f"no share link {share_id!r}: list them with GET /api/v1/shares")


class DeliveryNotFound(NotFound):
    """The project has no such message."""

    code = "delivery_not_found"
    words = "no delivery {!r}: list them with GET /api/v1/deliveries"


class ReceiverNotFound(NotFound):
    """The project has no such receiver of alerts."""

    code = "endpoint_not_found"
    words = "no receiver {!r}: list them with GET /api/v1/receivers"


class JobNotFound(NotFound):
    """No training job was registered under this id."""

    code = "job_not_found"

    def __init__(self, job_id: str, *, or_else: str | None = None) -> None:
        job = _plain(job_id)
        more = "" if or_else is None else f", or {or_else}"
        super().__init__(f"no job {job!r}: register it with PUT /api/v1/jobs/{job}{more}")


class SilenceNotFound(NotFound):
    """The project has no such silence."""

    code = "silence_not_found"
    words = "no silence {!r}: list them with GET /api/v1/silences"


class SessionNotFound(NotFound):
    """The project has no such session, or not one that the caller may see."""

    code = "session_not_found"
    words = "no session {!r}: list them with GET /api/v1/sessions"


class TokenNotFound(NotFound):
    """The project has no such token."""

    code = "token_not_found"
    words = "no token {!r}: list them with GET /api/v1/tokens"


class ViewNotFound(NotFound):
    """The project has no such saved view."""

    code = "view_not_found"
    words = "no saved view {!r}: list them with GET /api/v1/views"


class PictureNotFound(NotFound):
    """The link is none of ours, or its time is over."""

    code = "picture_not_found"

    def __init__(self) -> None:
        super().__init__("no picture under this link: it is not whole, or older than seven days")


class FixNotFound(NotFound):
    """The job has no such prediction of a fix."""

    code = "fix_not_found"
    words = "job {0!r} has no predicted fix {1!r}: list them with GET /api/v1/jobs/{0}/fixes"

    def __init__(self, job_id: str, fix_id: str) -> None:
        super().__init__(_plain(job_id), fix_id)


class QuestionNotFound(NotFound):
    """The job has no such saved question."""

    code = "question_not_found"
    words = "job {0!r} has no saved question {1!r}: list them with GET /api/v1/jobs/{0}/what-ifs"

    def __init__(self, job_id: str, question_id: str) -> None:
        super().__init__(_plain(job_id), question_id)


class WindowNotFound(NotFound):
    """The job has no such window."""

    code = "window_not_found"
    words = "job {0!r} has no window {1!r}: list them with GET /api/v1/jobs/{0}/windows"

    def __init__(self, job_id: str, window_id: str) -> None:
        super().__init__(_plain(job_id), window_id)


class TooSlow(PacelineError):
    """The request's body did not arrive in time."""

    status = 408
    code = "too_slow"


class Conflict(PacelineError):
    """The request does not fit the present state of what it names."""

    status = 409
    code = "conflict"


class SecretsLocked(Conflict):
    """Secrets cannot be stored or read: there is no key, or not the one that they need."""

    code = "secrets_locked"


class EpochSuperseded(Conflict):
    """A newer run of the job has registered, or the batch names a run that never did."""

    code = "epoch_superseded"

    def __init__(self, job_id: str, epoch: int, current: int) -> None:
        job = _plain(job_id)
        super().__init__(
            f"job {job!r} is in epoch {current}, not {epoch}: "
            f"register again with PUT /api/v1/jobs/{job} and use the epoch it answers"
        )


class JobRunning(Conflict):
    """Only a finished job can be archived or deleted."""

    code = "job_running"

    def __init__(self, job_id: str, *, can_end: bool) -> None:
        job = _plain(job_id)
        advice = "use end=true to end it first" if can_end else "wait until it has ended"
        super().__init__(
            f"job {job!r} has not ended: {advice}, or end it with POST /api/v1/jobs/{job}/end"
        )


class TooLarge(PacelineError):
    """The request is larger than the service takes at once."""

    status = 413
    code = "too_large"


class TooCostly(TooLarge):
    """The answer takes longer to compute than one caller may make the service compute."""

    code = "too_costly"

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"this takes more than {seconds:g} s to compute: ask for fewer steps or windows at once"
        )


class UnsupportedMedia(PacelineError):
    """A content type, encoding or wire version that is not known here."""

    status = 415
    code = "unsupported_media"


class WrongHost(PacelineError):
    """The Host header names a host that this service does not answer for."""

    status = 421
    code = "wrong_host"


class InvalidRequest(PacelineError):
    """The request can be decoded, and says something that cannot be."""

    status = 422
    code = "invalid"


class Blocked(InvalidRequest):
    """Messages must not be sent to this address: it is not one of the public Internet."""

    code = "endpoint_blocked"


class InvalidTrace(InvalidRequest):
    """No step can be replayed from these operations."""

    code = "invalid_trace"


class InvalidRules(InvalidRequest):
    """Alert rules that cannot be; `problems` are lines (from 1, None of the whole) and words."""

    code = "invalid_rules"

    def __init__(self, source: str, problems: Sequence[tuple[int | None, str]]) -> None:
        self.problems = tuple(problems)
        said = (words if line is None else f"line {line}: {words}" for line, words in self.problems)
        super().__init__(f"{source}: {'; '.join(said)}")


class TooManyRequests(PacelineError):
    """The caller has used up what it may ask for now."""

    status = 429
    code = "too_many_requests"

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NoPlace(TooManyRequests):
    """As many requests as may be worked on at the same time are; none ended in time."""

    code = "limit_places"


class RequestLimit(TooManyRequests):
    """A project asks more often than it may."""

    code = "limit_requests"


class ByteLimit(TooManyRequests):
    """A project sends more than it may."""

    code = "limit_bytes"


class TestLimit(TooManyRequests):
    """A project has sent as many tests and replays as it may for now."""

    code = "limit_tests"


class JobLimit(TooManyRequests):
    """A project has as many jobs as it may have in a day."""

    code = "limit_jobs"


class RunLimit(TooManyRequests):
    """A job has begun as many runs as it may in an hour."""

    code = "limit_runs"


class StreamLimit(TooManyRequests):
    """A project has as many open event streams as it may have."""

    code = "limit_sse"


class CallerGone(PacelineError):
    """The caller hung up: the computation ends, and nobody reads this."""

    status = 408
    code = "caller_gone"

    def __init__(self) -> None:
        super().__init__("the caller has gone")


class NotInstalled(PacelineError):
    """An optional part that this takes is not installed here; the message names it."""

    status = 501
    code = "not_installed"


class Unavailable(PacelineError):
    """Something this service needs does not answer now; nothing was taken."""

    status = 503
    code = "unavailable"
    retry_after_s: ClassVar[int] = 2


class JobBeingRemoved(Unavailable):
    """The data of a deleted job is being removed; afterwards its id is free again."""

    code = "job_being_removed"
    retry_after_s = 30

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"job {_plain(job_id)!r} was deleted and its data is being removed: try again"
        )


class NoConsumer(Unavailable):
    """No consumer is alive, and only consumers send messages."""

    code = "no_consumer"
    retry_after_s = 10


class QueueUnavailable(Unavailable):
    """The event queue does not answer."""

    code = "queue_unavailable"


class QueueFull(Unavailable):
    """The event queue takes no more until the consumers have caught up."""

    code = "ingest_full"
    retry_after_s = 5


class StoreUnavailable(Unavailable):
    """The database does not answer."""

    code = "store_unavailable"


class DiskFull(StoreUnavailable):
    """The disk is full: nothing was stored."""

    code = "disk_full"
    retry_after_s = 3

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; nothing was stored; free space or lower keep_raw_days")


class ObjectStorageUnavailable(Unavailable):
    """The bucket of operations does not answer, or refuses."""

    code = "object_storage_unavailable"


class OperationsDamaged(PacelineError):
    """A window's stored operations are not what was stored."""

    code = "operations_damaged"


class LeaseLost(PacelineError):
    """Another consumer owns the shard now: whatever was about to be committed must not be."""

    code = "lease_lost"


class StartUpFailed(PacelineError):
    """A process cannot start; the message says what to change."""

    code = "start_up_failed"


def _plain(job_id: str) -> str:
    # As app.trace.job says it, which is above this module: callers know no project but theirs.
    return job_id.partition("/")[2] or job_id
