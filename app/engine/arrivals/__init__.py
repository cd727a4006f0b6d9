"""Which rank made the others wait? Arrivals at collectives, by each rank's own clock.

Members of a collective leave it together but arrive at different times, so the latest one has the
shortest stay; no common clock is needed. Start with `arrivals.py`, which goes through the steps;
docs/arrivals.md has the exact definitions. Diagnosis and the API may import this package.
"""
