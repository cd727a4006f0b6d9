"""Encryption of secrets in the database: addresses and secrets of receivers, and signing keys.

AES-256-GCM. A sealed text is "v1.KEYID.DATA": the id of the key, then nonce and ciphertext in
base64. It is bound to its place (table and row), so that one row's text opens in no other row.
Of several keys the first one, the newest, seals; every key opens the texts that it has sealed.

The keys come from the environment or a file, never from the database: a `Store` gets them, and its
connections carry them.
"""

import base64
import binascii
import hashlib
import secrets
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import ColumnElement, Connection, false, or_

from app.errors import SecretsLocked, StartUpFailed

KEY_BYTES = 32
OPTION = "paceline_secret_keys"  # execution option of a Store's connections
_VERSION = "v1"
_NONCE_BYTES = 12
_ID_CHARS = 8
_HOW_TO_SET = (
    "the operator sets PACELINE_SECRET_KEY or PACELINE_SECRET_KEY_FILE, the same for API and "
    "consumers (paceline secrets new-key makes a key)"
)


class SecretKeys:
    """Keys, the newest first; without any, nothing can be sealed or opened.

    `keys` are 32 bytes each.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._ciphers = {key_id(key): AESGCM(key) for key in keys}
        self.newest_id = key_id(keys[0]) if keys else None

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all keys."""
        return frozenset(self._ciphers)

    def __bool__(self) -> bool:
        return bool(self._ciphers)

    def seal(self, plain: bytes, place: str) -> str:
        """The sealed text of `plain`, which opens only in this place; raises SecretsLocked."""
        newest_id = self.required_id()
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._ciphers[newest_id].encrypt(nonce, plain, place.encode())
        return f"{_VERSION}.{newest_id}.{base64.urlsafe_b64encode(nonce + sealed).decode()}"

    def required_id(self) -> str:
        """The id of the newest key; raises SecretsLocked."""
        if self.newest_id is None:
            raise SecretsLocked(f"secrets cannot be stored, as there is no key: {_HOW_TO_SET}")
        return self.newest_id

    def open(self, sealed: str, place: str) -> bytes:
        """The plain bytes of a sealed text.

        Raises:
            SecretsLocked: its key is not here, or the text was changed or comes from another place.
        """
        if (reason := self.why_locked(sealed)) is not None:
            raise SecretsLocked(reason)
        _, name, data = sealed.split(".")
        try:
            raw = base64.b64decode(data, altchars=b"-_", validate=True)
            return self._ciphers[name].decrypt(
                raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], place.encode()
            )
        except (binascii.Error, ValueError, InvalidTag):
            raise SecretsLocked(
                "its stored secrets were changed or belong to another row: set it up anew"
            ) from None

    def why_locked(self, sealed: str) -> str | None:
        """Why the text cannot be opened, as far as its key's id says; None if it may be opened."""
        name = sealing_key(sealed)
        if name in self._ciphers:
            return None
        if not self:
            return f"its secrets are encrypted, and there is no key: {_HOW_TO_SET}"
        return (
            f"its secrets are encrypted with key {name}, which this service does not have: "
            "the operator adds that key to PACELINE_SECRET_KEY, behind the newest"
        )


def keys_of(conn: Connection) -> SecretKeys:
    """The keys of the store that the connection belongs to."""
    keys: SecretKeys | None = conn.get_execution_options().get(OPTION)
    return keys or SecretKeys()


def may_open(conn: Connection, sealed: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether a column has a text that may be opened, as far as its key's id says."""
    ids = sorted(keys_of(conn).ids)
    return or_(false(), *(sealed.startswith(f"{_VERSION}.{name}.") for name in ids))


def key_id(key: bytes) -> str:
    """Eight characters that name a key and do not betray it."""
    return hashlib.sha256(b"paceline secret key v1:" + key).hexdigest()[:_ID_CHARS]


def sealing_key(sealed: str) -> str:
    """The id of the key that a sealed text needs; "?" if it is no sealed text."""
    parts = sealed.split(".")
    return parts[1] if len(parts) == 3 and parts[0] == _VERSION else "?"


def new_key() -> str:
    """A key as PACELINE_SECRET_KEY takes it."""
    return base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def parse_keys(text: str, source: str) -> SecretKeys:
    """The keys in a text, separated by commas or line ends, the newest first.

    Raises:
        StartUpFailed: one is no key; the message names `source` and shows nothing of it.
    """
    words = text.replace(",", "\n").split()
    if not words:
        raise StartUpFailed(f"{source} holds no key: paceline secrets new-key makes one")
    return SecretKeys([_parsed_key(word, source) for word in words])


def _parsed_key(word: str, source: str) -> bytes:
    try:
        key = base64.b64decode(word.replace("+", "-").replace("/", "_"), b"-_", validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise StartUpFailed(
            f"{source}: a secret key is {KEY_BYTES} random bytes in base64: "
            "paceline secrets new-key makes one"
        )
    return key
