"""All alerts of one job, in memory: every window that counts, and time, takes them further.

Nothing is read or written here: what changed is returned, for the caller to save.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from app.alerts import clockwork, machine
from app.alerts.alert import AlertState, fingerprint
from app.alerts.changes import Change
from app.alerts.chosen import Chosen, chosen
from app.alerts.facts import SilenceFacts, WindowFacts, place_of
from app.alerts.first_steps import FirstSteps
from app.alerts.labels import labels_of
from app.alerts.look import Moment
from app.alerts.machine import Step
from app.alerts.readings.quiet import Quiet
from app.alerts.readings.registry import FIGURES, QUIETS, has_made, whole
from app.alerts.rule import Rule
from app.alerts.seen_window import SeenWindow
from app.alerts.transitions import change_of
from app.alerts.wording import HAS_ENDED, NOT_COMPARED, RULE_GONE
from app.trace.names import plain

Place = tuple[int, int]


class Book:
    """The alerts of the job of this key ("project/job") that are not at rest.

    `states` are as they were saved last. Windows up to `counted_through` (epoch, first step) have
    been looked at before: the same one, or an older one that was revised, changes nothing.
    """

    def __init__(
        self,
        job_id: str,
        states: Iterable[AlertState] = (),
        rules: Sequence[Rule] = (),
        *,
        labels: Mapping[str, str] | None = None,
        counted_through: Place | None = None,
    ) -> None:
        self._job_id = job_id
        self._states = {(state.rule, state.subject): state for state in states}
        self._rules: dict[str, Rule] = {}
        self._labels = labels or {}
        self._counted_through = counted_through
        self._first_steps = FirstSteps()
        self._take(rules)

    @property
    def states(self) -> list[AlertState]:
        """All of them, by rule and subject."""
        return [self._states[key] for key in sorted(self._states)]

    @property
    def has_pending_by_clock(self) -> bool:
        """Whether an alert only waits for time to go by."""
        return any(
            state.phase == "pending" and self._rules[rule].on in QUIETS
            for (rule, _), state in self._states.items()
            if rule in self._rules
        )

    def relabel(self, labels: Mapping[str, str]) -> None:
        """A new run of the job has these labels: alerts begin with them from now on.

        Those that fire keep theirs, by which receivers know them and are to hear of their end.
        """
        self._labels = labels

    def adopt(self, rules: Sequence[Rule], now_s: float) -> list[Change]:
        """From now on by these rules; alerts of others are over."""
        self._take(rules)
        known = sorted(self._states.items())
        gone = [key for key, state in known if not has_made(self._rules.get(key[0]), state)]
        self._first_steps.keep(self._states[key] for key in gone)
        return [change for key in gone for change in self._end(key, RULE_GONE, now_s)]

    def window(self, facts: WindowFacts, now_s: float) -> list[Change]:
        """After a window has closed; without figures it takes no alert further.

        But where that lasts, what is known of an alert becomes too old.
        """
        if facts.state in ("open", "superseded") or not self._is_later(facts.place):
            return []
        changes: list[Change] = []
        seen: list[SeenWindow] = []
        if facts.state == "complete" and facts.verdict is not None:
            self._counted_through = facts.place
            changes += self._compared_no_more(facts.place[0], now_s)
            at = Moment(facts.window_id, *facts.place, facts.took_s, now_s)
            seen = list(self._seen(facts))
            for each in chosen(seen, self._states.values(), self._rules):
                changes += self._looked(each, at)
            self._first_steps.forget({each.rule.on for each in seen})
        return changes + list(self._unseen({each.rule.name for each in seen}, now_s))

    def silence(self, facts: SilenceFacts, now_s: float) -> list[Change]:
        """Now that so much is known of who is silent; alerts by figures then have no data."""
        changes = [
            change
            for rule in self._rules.values()
            if rule.on in QUIETS
            for change in self._listened(rule, QUIETS[rule.on], facts, now_s)
        ]
        if facts.is_without_data:
            for key, state in self._by_figures():
                changes += self._went(key, machine.without_data(state), now_s)
        return changes

    def ended(self, epoch: int, now_s: float) -> list[Change]:
        """The job has ended, in this run: nothing of it is pending or fires any more.

        But what a newer run has shown meanwhile.
        """
        keys = sorted(key for key, state in self._states.items() if (state.epoch or 0) <= epoch)
        return [change for key in keys for change in self._end(key, HAS_ENDED, now_s)]

    def _take(self, rules: Sequence[Rule]) -> None:
        job = plain(self._job_id)
        self._rules = {rule.name: whole(rule) for rule in rules if rule.is_for(job)}

    def _compared_no_more(self, epoch: int, now_s: float) -> Iterator[Change]:
        """In a new run, ends alerts that held the run before against its own beginning."""
        for key, state in self._by_figures():
            if FIGURES[self._rules[key[0]].on].is_of_run and state.epoch != epoch:
                yield from self._end(key, NOT_COMPARED, now_s)

    def _is_later(self, place: Place) -> bool:
        seen = [place_of(state.window_id) for state in self._states.values() if state.window_id]
        if self._counted_through is not None:
            seen.append(self._counted_through)
        return all(place > each for each in seen)

    def _seen(self, facts: WindowFacts) -> Iterator[SeenWindow]:
        for rule in self._rules.values():
            figure = FIGURES.get(rule.on)
            if figure is None or facts.verdict not in figure.verdicts:
                continue
            values = figure.values(rule, facts)
            if values is not None:
                yield SeenWindow(rule, figure, facts, values)

    def _looked(self, of_rule: Chosen, at: Moment) -> Iterator[Change]:
        rule = of_rule.seen.rule
        for subject in of_rule.subjects:
            look = of_rule.seen.look(subject, of_rule.num_more)
            look = self._first_steps.known(look, rule.on, subject)
            fresh = self._fresh(rule, subject, look.labels, at.now_s)
            before = self._states.get((rule.name, subject))
            step = machine.by_window(rule, before, fresh, look, at)
            yield from self._went((rule.name, subject), step, at.now_s)

    def _unseen(self, seen: Collection[str], now_s: float) -> Iterator[Change]:
        """Alerts of other rules than were `seen` in the window that has closed."""
        for key, state in self._by_figures():
            if key[0] not in seen:
                yield from self._went(key, machine.unseen(state, now_s), now_s)

    def _by_figures(self) -> list[tuple[tuple[str, str], AlertState]]:
        names = {name for name, rule in self._rules.items() if rule.on in FIGURES}
        return [(key, state) for key, state in sorted(self._states.items()) if key[0] in names]

    def _listened(
        self, rule: Rule, quiet: Quiet, facts: SilenceFacts, now_s: float
    ) -> Iterator[Change]:
        if not quiet.is_known(facts):
            return
        before = self._states.get((rule.name, ""))
        fresh = replace(self._fresh(rule, "", {}, now_s), detail=quiet.detail(facts))
        step = clockwork.by_clock(rule, before, fresh, holds=quiet.holds(facts), now_s=now_s)
        yield from self._went((rule.name, ""), step, now_s)

    def _fresh(
        self, rule: Rule, subject: str, culprit: Mapping[str, str], now_s: float
    ) -> AlertState:
        return AlertState(
            fingerprint=fingerprint(self._job_id, rule.name, subject),
            job_id=self._job_id,
            rule=rule.name,
            subject=subject,
            phase="pending",
            severity=rule.severity,
            began_at_s=now_s,
            threshold=rule.above,
            labels=labels_of(rule, self._job_id, subject, culprit=culprit, of_job=self._labels),
            runbook_url=rule.runbook_url,
        )

    def _end(self, key: tuple[str, str], reason: str, now_s: float) -> Iterator[Change]:
        yield from self._went(key, machine.ended(self._states[key], reason), now_s)

    def _went(self, key: tuple[str, str], step: Step, now_s: float) -> Iterator[Change]:
        """Remember the next state; a change, if it is one."""
        before = self._states.pop(key, None)
        if step.state is not None:
            self._states[key] = step.state
        if (change := change_of(before, step, now_s)) is not None:
            yield change
