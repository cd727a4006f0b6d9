"""Windows that come again, and a consumer that is killed anywhere, change no alert."""

from hypothesis import given
from hypothesis import strategies as st

from app.alerts.rule import Rule
from app.alerts.rules.evaluation import JobAlerts
from tests.alerts.alert_factories import JOB, NOW_S, facts, finding, rule

RULES = [
    rule(for_windows=2, for_s=0.0, keep_firing_s=8.0),
    Rule("cause", "cause", above=0.1, for_windows=2, for_s=10.0, keep_firing_s=0.0),
    Rule("worker", "worker", above=1.2, for_windows=1, for_s=0.0, keep_firing_s=16.0),
    Rule("fidelity", "low-fidelity", above=0.05, for_windows=1, for_s=0.0, keep_firing_s=0.0),
]

one_window = st.fixed_dictionaries(
    {
        "slowdown": st.sampled_from([1.0, 1.07, 1.15, 1.3]),
        "cost": st.sampled_from([None, 0.05, 0.3]),
        "state": st.sampled_from(["complete", "complete", "complete", "incomplete"]),
        "verdict": st.sampled_from(["ok", "ok", "ok", "low"]),
        "is_new_run": st.integers(0, 7).map(lambda drawn: drawn == 7),
    }
)
lives = st.lists(one_window, min_size=1, max_size=25)
# After which windows the consumer is killed, and how many of those before come again then.
kills = st.dictionaries(st.integers(0, 24), st.integers(0, 5), max_size=5)


def windows_of(life):
    found, epoch = [], 1
    for number, each in enumerate(life):
        epoch += each["is_new_run"]
        off = 0.08 if each["verdict"] == "low" else 0.01
        found.append(
            facts(
                number,
                each["slowdown"],
                epoch,
                state=each["state"],
                verdict=each["verdict"],
                findings=[finding(cost=each["cost"])] if each["cost"] else [],
                fidelity={"discrepancy": off, "verdict": each["verdict"]},
            )
        )
    return found


def told(book, window):
    return [event for change in book.add_window(window, NOW_S) for event in change.events]


@given(lives, kills)
def test_what_is_stored_is_enough_to_go_on_from(life, killed):
    windows = windows_of(life)
    whole = JobAlerts(JOB, rules=RULES)
    expected = [event for window in windows for event in told(whole, window)]
    book, found, counted = JobAlerts(JOB, rules=RULES), [], None
    for number, window in enumerate(windows):
        found += told(book, window)
        if window.state == "complete":
            counted = window.place
        if number in killed:
            book = JobAlerts(JOB, book.states, RULES, counted_through=counted)
            for again in windows[max(0, number - killed[number]) : number + 1]:
                if again.state == "complete":  # only what was never counted may count now
                    assert told(book, again) == []
    assert found == expected
    assert book.states == whole.states
