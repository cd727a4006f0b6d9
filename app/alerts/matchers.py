"""Which alerts a silence or an endpoint is about: by their labels, all of which have to match."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

# Labels that every alert has, beside those of its rule and its job.
BUILT_IN = ("alertname", "project", "job", "rule", "subject", "severity", "cause", "worker", "host")


@dataclass(frozen=True, slots=True)
class Matcher:
    """One label and a pattern with * and ?; `is_negative` turns it round.

    A label that an alert does not have counts as empty.
    """

    label: str
    pattern: str
    is_negative: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an alert of these labels is meant."""
        return fnmatchcase(labels.get(self.label, ""), self.pattern) != self.is_negative


def all_match(matchers: Sequence[Matcher], labels: Mapping[str, str]) -> bool:
    """Whether each of them matches; none match everything."""
    return all(matcher.matches(labels) for matcher in matchers)
