"""Since which step was it so, before a rule began to look?"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from app.alerts.alert import AlertState
from app.alerts.look import Look
from app.alerts.rule import On


class FirstSteps:
    """The first steps of alerts whose rules are gone: what another rule finds just so in the next
    window has not begun with that window.
    """

    def __init__(self) -> None:
        self._steps: dict[tuple[On | None, str], int | None] = {}

    def keep(self, states: Iterable[AlertState]) -> None:
        """These alerts are about to end with their rules."""
        firing = (state for state in states if state.phase == "firing")
        self._steps |= {(each.detail.on, each.subject): each.detail.since_step for each in firing}

    def known(self, look: Look, on: On, subject: str) -> Look:
        """The look, with the first step that is known, if it does not know one itself."""
        since_step = self._steps.get((on, subject))
        if since_step is None or look.detail.since_step is not None:
            return look
        return replace(look, detail=replace(look.detail, since_step=since_step))

    def forget(self, seen: Collection[On]) -> None:
        """A window was looked at for these: what was not found in it is not so any more."""
        self._steps = {key: step for key, step in self._steps.items() if key[0] not in seen}
