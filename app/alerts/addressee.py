"""Whose news a notice is, and where to read on."""

from dataclasses import dataclass
from urllib.parse import quote

from app.alerts.picture_link import PictureLinks
from app.trace.names import plain, project_of


@dataclass(frozen=True, slots=True)
class Addressee:
    """Whose news it is: one rule on one job, and what a message says of both.

    `base_url` is the address of the page, None where nobody has said it; `pictures` makes links to
    charts, None where there are none.
    """

    job_id: str
    job_name: str
    rule: str
    base_url: str | None = None
    pictures: PictureLinks | None = None

    @property
    def project(self) -> str:
        """Whose job it is."""
        return project_of(self.job_id)

    @property
    def labels(self) -> dict[str, str]:
        """By what alerts are in this group."""
        return {"job": plain(self.job_id), "project": self.project, "rule": self.rule}

    @property
    def key(self) -> str:
        """The same for all notices of the group, as an Alertmanager would write it."""
        labels = ", ".join(f'{name}="{value}"' for name, value in self.labels.items())
        return f"{{}}:{{{labels}}}"

    def page_url(self, window_id: str | None) -> str | None:
        """The job's page, at the window where there is one."""
        if self.base_url is None:
            return None
        page = f"{self.base_url.rstrip('/')}/jobs/{quote(plain(self.job_id), safe='')}"
        return page if window_id is None else f"{page}?window={window_id}"

    def image_url(self, window_id: str | None, now_s: float) -> str | None:
        """A picture of the window's workers for who has no token."""
        if self.pictures is None or window_id is None:
            return None
        return self.pictures.heatmap(self.job_id, window_id, now_s)
