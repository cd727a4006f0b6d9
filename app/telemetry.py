"""Logging: one line per event, on standard error, without secrets."""

import logging
import re
import sys
from typing import Any, Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

# No word boundary before it: the letter of an escaped line end may precede it.
_SECRET = re.compile(r"(pl_|whsec_)[A-Za-z0-9_\-+/=]{8,}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")


def set_up_logging(log_format: Literal["text", "json"] = "text") -> None:
    """Set the format of all log lines of this process, including those of libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED, processors=_rendering(log_format)
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    # These log every request and migration at INFO.
    for chatty in ("httpx", "httpcore", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )


def without_secrets(line: str) -> str:
    """The line with every token and webhook secret masked."""
    return _SECRET.sub(r"\1***", line)


def on_one_line(text: str) -> str:
    """The text with control characters escaped, so that it cannot look like a second line."""
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def _rendering(log_format: Literal["text", "json"]) -> list[Processor]:
    renderer: Processor = structlog.processors.JSONRenderer()
    if log_format == "text":
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    return [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        *([_escape] if log_format == "text" else []),
        renderer,
        lambda _logger, _method, line: without_secrets(str(line)),
    ]


def _escape(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    trace = event.pop("exception", None)
    escaped: dict[str, Any] = {
        key: on_one_line(value) if isinstance(value, str) else value for key, value in event.items()
    }
    if trace is not None:
        # Indented, so that no line of a message in it begins like a log line.
        escaped["exception"] = "\n".join(f"  | {line}" for line in str(trace).splitlines())
    return escaped
