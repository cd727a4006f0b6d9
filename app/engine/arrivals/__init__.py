"""Whom did everybody wait for? Arrivals at collectives, by each rank's own clock.

Members of a collective leave it together and arrive when they arrive, so the latest has the
shortest stay; no common clock is needed. Start with `arrivals.py`, which goes through the steps;
docs/arrivals.md has the exact definitions. Diagnosis and the API may import this package.
"""
