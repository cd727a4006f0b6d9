"""Everything about one job, for whoever wants to know why it was misjudged."""

from typing import Any

from app.cli.bench.diagnosis.examined import outcome, windows_of
from app.cli.bench.diagnosis.misses import fault_as_json, said_as_json
from app.cli.bench.diagnosis.numbers import Numbered
from app.cli.bench.diagnosis.plan import planned
from app.cli.bench.diagnosis.verdict import false_findings, wrongs
from app.cli.bench.diagnosis.watched import Seen


def story(numbered: Numbered) -> dict[str, Any]:
    """How the job was made, what it had, what was said of it, and window by window why."""
    plan = planned(numbered)
    windows = windows_of(plan)
    told = outcome(plan, numbered, windows)
    made = plan.made
    return {
        "job": numbered.number,
        "what": plan.what,
        "wrong": wrongs(told),
        "truth": [fault_as_json(fault) for fault in told.faults],
        "said": [said_as_json(each) for each in told.said],
        "false": [said_as_json(each) for each in false_findings(told)],
        "made": {
            "faults": [repr(fault) for fault in made.faults],
            "events": [repr(event) for event in plan.events],
            "costs": repr(made.costs),
            "cluster": repr(made.cluster),
            "odd_steps": repr(made.odd_steps),
            "parallelism": repr(made.parallelism),
            "schedule": made.schedule.name,
            "hosts": {host: made.world.workers_of_host(host) for host in made.world.host_names},
            "habits": repr(plan.habits),
            "seed": made.seed,
        },
        "steps": list(plan.steps),
        "windows": [_window(seen) for seen in windows],
    }


def _window(seen: Seen) -> dict[str, Any]:
    result = {name: value for name, value in seen.result.items() if name != "per_step"}
    return {"skipped": len(seen.window.skipped), **result}
