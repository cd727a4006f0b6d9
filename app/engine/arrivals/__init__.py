"""Which rank made the others wait? Arrivals at collectives, by each rank's own clock.

Read `arrivals.py` first, which goes through the steps; docs/arrivals.md has the definitions.
Members of a collective leave it together, so the latest has the shortest stay.
Imported by: api, diagnosis, engine.
"""
