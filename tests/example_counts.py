"""How many examples Hypothesis draws: few in `make quick`, some in `make test`, all at night.

Every test takes its number from the profile in force, so that one place says what CI spends.
"""

from hypothesis import HealthCheck, settings

NIGHTLY = "nightly"
_ALL_EXAMPLES = 200
_LEAST_EXAMPLES = 4  # below, a property is checked on little more than Hypothesis's simplest values


def register_profiles() -> None:
    """The profiles: `quick`, `ci` (the same examples each time), `dev` and `nightly`."""
    # The machine is shared: a slow example is no failure.
    base = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("dev", base, max_examples=20)
    settings.register_profile("ci", base, max_examples=20, derandomize=True)
    settings.register_profile("quick", base, max_examples=8, derandomize=True)
    # A night draws new examples each time; the blob of a failed one draws it again.
    settings.register_profile(NIGHTLY, base, max_examples=_ALL_EXAMPLES, print_blob=True)


def many(number: int) -> settings:
    """`number` examples at night, otherwise as large a share of them as the profile draws."""
    assert settings.default is not None  # a profile is loaded before any test is
    profile = settings.default
    share = min(1.0, profile.max_examples / _ALL_EXAMPLES)
    return settings(profile, max_examples=max(min(_LEAST_EXAMPLES, number), round(number * share)))
