"""What all tests share: how Hypothesis runs."""

import os

from hypothesis import HealthCheck, settings

# The machine is shared: a slow example is no failure, and CI repeats the same examples.
settings.register_profile(
    "dev", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50
)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
