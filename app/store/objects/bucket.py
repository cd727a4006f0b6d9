"""A bucket of an S3-compatible object storage: put, get and delete objects by name.

Every call is over within seconds, whether or not the storage answers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from app.errors import NotInstalled, ObjectStorageUnavailable, StartUpFailed

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3Store

_CONNECT = timedelta(seconds=3)
_REQUEST = timedelta(seconds=20)
_RETRIES = 2
_RETRY_FOR = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """Where the bucket is, and how it is signed for.

    Without `endpoint` it is Amazon's of the region; without keys, they are those of the machine's
    role or of the `AWS_*` variables.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)


class Bucket(Protocol):
    """Objects by name; each call raises `ObjectStorageUnavailable` if it fails."""

    def put(self, name: str, data: bytes) -> None:
        """Store an object, over one of the same name."""

    def get(self, name: str) -> bytes | None:
        """The object; None if there is none of this name."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete those of the objects that are there."""


class S3Bucket:
    """A bucket over HTTP.

    Raises:
        NotInstalled: the package for it is missing.
        StartUpFailed: the address cannot be used.
    """

    def __init__(self, address: BucketAddress) -> None:
        try:
            from obstore import exceptions
        except ImportError:
            raise NotInstalled(
                "object storage needs a further package: pip install 'paceline[s3]'"
            ) from None
        self._address = address
        # Some of the library's errors are Python's own: of a missing file, or a refused one.
        self._failures = (exceptions.BaseError, OSError)
        try:
            self._store = _open(address)
        except (exceptions.BaseError, ValueError) as error:
            raise StartUpFailed(
                f"object storage {address.endpoint or 'of Amazon'}, bucket {address.bucket}: "
                f"its address cannot be used: {_first_line(error)}"
            ) from error

    def put(self, name: str, data: bytes) -> None:
        """Store an object, over one of the same name."""
        with self._asked_to("store"):
            # As one request, whatever its size: parts that a crash leaves behind are paid for.
            self._store.put(name, data, use_multipart=False)

    def get(self, name: str) -> bytes | None:
        """The object; None if there is none of this name."""
        with self._asked_to("read"), suppress(FileNotFoundError):
            return bytes(self._store.get(name).bytes())
        return None

    def delete(self, names: Sequence[str]) -> None:
        """Delete those of the objects that are there."""
        with self._asked_to("delete"), suppress(FileNotFoundError):
            self._store.delete(list(names))

    @contextmanager
    def _asked_to(self, verb: str) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            where = f"bucket {self._address.bucket} at {self._address.endpoint or 'Amazon'}"
            raise ObjectStorageUnavailable(
                f"object storage did not {verb} an object ({where}): {_first_line(error)}"
            ) from error


def _open(address: BucketAddress) -> "S3Store":
    from obstore.store import S3Store

    client: ClientConfig = {"connect_timeout": _CONNECT, "timeout": _REQUEST}
    retries: RetryConfig = {"max_retries": _RETRIES, "retry_timeout": _RETRY_FOR}
    if address.endpoint is not None and address.endpoint.startswith("http://"):
        client["allow_http"] = True
    config: S3Config = {"region": address.region}
    if address.endpoint is not None:
        config["endpoint"] = address.endpoint
    if address.access_key is not None and address.secret_key is not None:
        config["access_key_id"] = address.access_key
        config["secret_access_key"] = address.secret_key
    return S3Store(
        address.bucket,
        prefix=address.prefix or None,
        config=config,
        client_options=client,
        retry_config=retries,
    )


def _first_line(error: Exception) -> str:
    """The library's message, without the debugging text behind it."""
    return str(error).partition("\n")[0][:300]
