"""Number of examples of costly checks: all of them on request, a quarter in CI."""

from hypothesis import HealthCheck, settings

WHOLE = "whole"  # pytest --hypothesis-profile=whole
_WHOLE_EXAMPLES = 200

settings.register_profile(
    WHOLE,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=_WHOLE_EXAMPLES,
)


def many(number: int) -> settings:
    """`number` examples, always the same, or as large a share of them as the profile draws."""
    assert settings.default is not None  # a profile is loaded before any test is
    share = min(1.0, settings.default.max_examples / _WHOLE_EXAMPLES)
    return settings(
        max_examples=max(1, round(number * share)),
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
