"""Bodies of OTLP/HTTP: JSON or protobuf, packed or not; whatever comes, spans or a 4xx."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from app.errors import PacelineError, TooLarge
from app.ingest.inflate import MAX_BODY_BYTES, inflated, known_encoding
from app.ingest.unknown import UnknownFormat
from app.trace.readers import otlp_json, otlp_protobuf
from app.trace.readers.otlp_span import NameWanted, Sent

JSON_TYPE = "application/json"
PROTOBUF_TYPE = "application/x-protobuf"
# Above this, reading a body would hold up everybody else; so many are read beside it at once.
ASIDE_BYTES = 1 << 13
MAX_ASIDE = 2


@dataclass(frozen=True, slots=True)
class Form:
    """A content type: how requests of it are read, and answers written."""

    media_type: str
    read: Callable[[bytes | bytearray, NameWanted], list[Sent]]
    answer: Callable[[int, str], bytes]


_FORMS = {
    JSON_TYPE: Form(JSON_TYPE, otlp_json.read, otlp_json.answer),
    PROTOBUF_TYPE: Form(PROTOBUF_TYPE, otlp_protobuf.read, otlp_protobuf.answer),
}


def form_of(content_type: str) -> Form:
    """The form that a Content-Type names.

    Raises:
        UnknownFormat: none that is known.
    """
    form = _FORMS.get(content_type.partition(";")[0].strip().lower())
    if form is None:
        raise UnknownFormat(
            f"send {PROTOBUF_TYPE} or {JSON_TYPE}, not {content_type[:100]!r}",
            known_content_types=list(_FORMS),
        )
    return form


class BodyReader:
    """Reads bodies, large ones beside the event loop."""

    def __init__(self) -> None:
        self._aside = asyncio.Semaphore(MAX_ASIDE)

    async def read(self, body: bytes, form: Form, encoding: str, wanted: NameWanted) -> list[Sent]:
        """What the body says of each process.

        Raises:
            BadRequest: the bytes are no OTLP traces, or not compressed as is said.
            UnknownFormat: compressed in another way.
            TooLarge: more than is taken at once.
        """
        packed = known_encoding(encoding)
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge(f"a body has at most {MAX_BODY_BYTES} bytes: split it")
        # A packed one may be of any size: sixty bytes of zstd can hold a megabyte.
        if not packed and len(body) <= ASIDE_BYTES:
            return _read(body, form, packed, wanted)
        try:
            async with self._aside:
                return await run_in_threadpool(_read, body, form, packed, wanted)
        except PacelineError as error:
            # As in `routes.ops`: else its traceback keeps the body until the next collection.
            raise error.with_traceback(None) from None


def _read(body: bytes, form: Form, packed: str, wanted: NameWanted) -> list[Sent]:
    return form.read(inflated(body, packed), wanted)
