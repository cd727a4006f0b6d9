"""Who watches the watcher: tells people when consumers are dead or the canary is missing.

Runs in every API process. Read `service_watch.py` first: when an outage begins and ends, and when
people are told; `canary.py` is the job by which the service checks itself.
Imported by: main.
"""
