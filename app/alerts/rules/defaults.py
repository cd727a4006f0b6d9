"""The rules of projects that have none of their own: right for most jobs as they are."""

from pathlib import Path

from msgspec.structs import replace

from app.alerts.rule import Rule
from app.alerts.rules.rule_text import MAX_RULES_BYTES, parse_rules
from app.errors import InvalidRules, StartUpFailed

# A cause has to be this sure before it wakes an on-call engineer by itself.
_MIN_CAUSE_CONFIDENCE = 0.8
# A tenth of the time lost, 1 / 0.9 = 1.11: also to what S does not show, since all ranks have it
# or so many that they are what is usual.
_MIN_STEP_TIME_RATIO = 1.1


def default_rules(
    *,
    slowdown: float = 1.1,
    clear_slowdown: float = 1.05,
    windows: int = 3,
    for_s: float = 30.0,
    keep_firing_s: float = 60.0,
) -> list[Rule]:
    """The rules of projects without rules of their own.

    The rules on causes and step time wait for one window more: a slowdown fires first and then
    inhibits both.
    """
    quietly = Rule(
        "stalled", "stalled", for_s=0.0, keep_firing_s=0.0, severity="critical",
        inhibits=("slowdown", "cause", "step-time", "silent-worker"),
    )  # fmt: skip
    first = Rule(
        "slowdown", "slowdown", slowdown, clear_slowdown, for_windows=windows, for_s=for_s,
        keep_firing_s=keep_firing_s, inhibits=("cause", "step-time"),
    )  # fmt: skip
    later = replace(first, above=None, clear=None, for_windows=windows + 1, inhibits=())
    return [
        first,
        replace(later, name="cause", on="cause", above=0.10, min_confidence=_MIN_CAUSE_CONFIDENCE),
        replace(later, name="step-time", on="step-time", above=_MIN_STEP_TIME_RATIO),
        quietly,
        # Inhibits nothing: without a few of its workers a job still has figures.
        replace(quietly, name="silent-worker", on="silent-worker", inhibits=()),
        replace(quietly, name="crashed", on="crashed", inhibits=()),
        Rule("fix-outcome", "fix-outcome", for_windows=1, for_s=0.0, keep_firing_s=0.0,
             severity="info"),
    ]  # fmt: skip


def rules_of_file(path: Path) -> list[Rule]:
    """The rules in a YAML file.

    Raises:
        StartUpFailed: it cannot be read, or has rules that cannot be; the message has all lines.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_RULES_BYTES + 1).decode()
        return parse_rules(text, source=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise StartUpFailed(f"the rules in {path} cannot be read: {error}") from error
    except InvalidRules as error:
        raise StartUpFailed(str(error)) from error
