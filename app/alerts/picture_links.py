"""A link to a chart as a picture, for receivers that fetch it and have no token.

Its content is signed with a key that API and consumers share: a holder of the link sees that one
picture until the link expires, and can make no other link of it.
"""

import base64
import hmac
import json
import re
from dataclasses import astuple, dataclass, field

from app.trace.job import job_of, project_of

PICTURES_PATH = "/api/v1/pictures/"
LINK_VALID_S = 7 * 86_400.0
KEY_NAME = "pictures"  # under which the store has the key
_CHART, _THEME = "workers", "light"
_LINK = re.compile(r"(?P<content>[0-9A-Za-z_-]{1,600})\.(?P<seal>[0-9A-Za-z_-]{43})\.png")
_PURPOSE = b"paceline picture v1\0"  # so that a seal of anything else is none of a picture


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart of a window of a job, its theme, and when the link expires (Unix seconds)."""

    project: str
    job: str
    window: str
    chart: str
    theme: str
    expires_s: int


@dataclass(frozen=True, slots=True)
class SignedPictureLinks:
    """Makes links to pictures at `base_url`, the page's address."""

    base_url: str
    key: bytes = field(repr=False)

    def heatmap(self, job_id: str, window_id: str, now_s: float) -> str:
        """The slowdown of each worker in a window, for seven days from now on."""
        project, job = project_of(job_id), job_of(job_id)
        picture = Picture(project, job, window_id, _CHART, _THEME, int(now_s + LINK_VALID_S))
        return f"{self.base_url.rstrip('/')}{PICTURES_PATH}{sign_link(picture, self.key)}"


def sign_link(picture: Picture, key: bytes) -> str:
    """The last part of the picture's link."""
    content = _base64(json.dumps(astuple(picture), separators=(",", ":")).encode())
    return f"{content}.{_signature(content, key)}.png"


def verify_link(link: str, key: bytes, now_s: float) -> Picture | None:
    """Which picture it is of; None if we did not seal it, or its time is over."""
    match = _LINK.fullmatch(link)
    if match is None or not hmac.compare_digest(match["seal"], _signature(match["content"], key)):
        return None
    # Decoded only now that it is known to be ours.
    content = match["content"]
    picture = Picture(*json.loads(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4))))
    return picture if picture.expires_s > now_s else None


def _signature(content: str, key: bytes) -> str:
    return _base64(hmac.digest(key, _PURPOSE + content.encode(), "sha256"))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
