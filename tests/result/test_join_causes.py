import pytest
from msgspec.structs import replace

from app.result.join import (
    MAX_FINDINGS,
    by_cost,
    combine_causes,
    combined_unexplained,
    leading,
)
from tests import results
from tests.results import idle, window_result

PARTS = {
    "fact": "dp 3, stage 1 on host-17 is 1.6x slower than its peers",
    "past_fact": "dp 3, stage 1 on host-17 was 1.6x slower than its peers",
    "onset": "since",
    "note": "",
}
SENTENCE = f"{PARTS['fact']}, since step 40; it costs 30 % of the job's GPU time"
FIGURES = window_result(optype_slowdown={"forward-compute": 1.3, "gc": 1.1}, stage_share=[0.2, 0.8])


def result(*findings, recorded_s=10.0, **parts):
    values = {
        "findings": findings,
        "ruled_out": [{"cause": "gc-pause", "reason": ""}, {"cause": "slow-worker", "reason": ""}],
        "changes": [],
        "steps": [],
        "step_time_s": {"recorded": [recorded_s], "simulated": [recorded_s], "ideal": [8.0]},
    }
    return window_result(**values | parts)


def finding(cost=0.3, onset=40, cause="slow-worker", dp_rank=3, sentence=SENTENCE):
    return results.finding(
        cause,
        score=0.8,
        culprits=[{"dp_rank": dp_rank, "stage": 1}],
        onset_step=onset,
        cost=cost,
        evidence={"share_of_loss": 0.9},
        sentence=sentence,
        sentence_parts=PARTS,
    )


def combined(*parts):
    return combine_causes(parts, FIGURES).as_json()


def findings_of(*parts):
    return combined(*parts)["findings"]


def test_same_cause_and_culprit_become_one_finding():
    [found] = findings_of(result(), result(finding(0.3)), result(finding(0.1)), result())
    assert found["seen_in"] == {"windows": 2, "of": 4}
    assert found["cost"] == pytest.approx(0.1)
    assert found["sentence"].endswith("; it costs 10 % of the job's GPU time")


def test_cost_is_weighted_by_the_windows_time():
    [found] = findings_of(
        result(finding(0.4), recorded_s=30.0), result(finding(0.0), recorded_s=10.0)
    )
    assert found["cost"] == pytest.approx(0.3)


def test_share_of_loss_is_weighted_by_the_windows_loss():
    # 0.9 of 2 s in one window, and nothing of 7 s in another.
    [found] = findings_of(result(finding()), result(recorded_s=15.0))
    assert found["evidence"]["share_of_loss"] == pytest.approx(0.2)


def test_other_culprits_are_another_finding_and_the_most_costly_is_first():
    found = findings_of(result(finding(0.1, dp_rank=3)), result(finding(0.4, dp_rank=5)))
    assert [each["culprits"][0]["dp_rank"] for each in found] == [5, 3]
    assert [each["cost"] for each in found] == [pytest.approx(0.2), pytest.approx(0.05)]


def test_the_earliest_onset_is_in_the_sentence():
    later = finding(0.3, onset=40)
    [found] = findings_of(result(finding(0.3, onset=32)), result(later))
    assert found["onset_step"] == 32
    assert ", since step 32;" in found["sentence"]


def test_an_onset_unknown_to_the_first_window_stays_unknown():
    [found] = findings_of(result(finding(onset=None)), result(finding(onset=12)))
    assert found["onset_step"] is None
    assert found["onset_by_step"] == 12
    assert found["sentence"].startswith(
        "dp 3, stage 1 on host-17 is 1.6x slower than its peers, since step 12 or before; "
    )


def test_a_host_that_becomes_known_keeps_the_finding():
    culprit = results.culprit(dp_rank=3, stage=1, rank=7)
    named = replace(culprit, host="host-17")
    parts = [result(replace(finding(), culprits=(each,))) for each in (culprit, named)]
    [found] = findings_of(*parts)
    assert found["culprits"] == [named.as_json()]
    assert found["seen_in"] == {"windows": 2, "of": 2}


def of_rank(rank, **more):
    return replace(finding(), culprits=(results.culprit(dp_rank=0, stage=0, rank=rank, **more),))


def test_two_gpus_of_one_worker_are_two_findings():
    found = findings_of(result(of_rank(1)), result(of_rank(2)))
    assert sorted(each["culprits"][0]["rank"] for each in found) == [1, 2]
    assert [each["seen_in"]["windows"] for each in found] == [1, 1]


def test_rotating_culprits_are_one_finding():
    rotating = [replace(finding(dp_rank=rank), persistence="rotating") for rank in (1, 2, 5)]
    [found] = findings_of(result(*rotating[:2]), result(rotating[2]))
    assert found["culprits"] == [{"dp_rank": 5, "stage": 1}]
    assert found["seen_in"] == {"windows": 2, "of": 2}


def test_the_most_costly_findings_are_listed_and_the_others_counted():
    many = [result(finding(0.001 * (rank + 1), dp_rank=rank)) for rank in range(MAX_FINDINGS + 3)]
    found = combined(*many)
    assert [each["culprits"][0]["dp_rank"] for each in found["findings"]] == [*range(22, 2, -1)]
    assert found["more_findings"] == 3
    assert combined(*many[:2])["more_findings"] == 0


def test_an_unknown_cost_stays_unknown():
    [found] = findings_of(result(finding(cost=None)), result(finding(cost=None)))
    assert found["cost"] is None
    assert found["sentence"] == f"{PARTS['fact']}, since step 40"


def test_sentences_without_parts_stay_as_they_are():
    whole = replace(finding(), parts=None)
    [found] = findings_of(result(whole), result(replace(whole, cost=0.1)))
    assert found["sentence"] == SENTENCE


def test_windows_with_withheld_causes_are_not_counted():
    [found] = findings_of(result(finding()), result(findings=None))
    assert found["seen_in"] == {"windows": 1, "of": 1}
    assert combined(result(findings=None))["findings"] is None


def test_a_cause_that_was_found_once_is_not_ruled_out():
    others = combined(result(finding()), result())["ruled_out"]
    assert [each["cause"] for each in others] == ["gc-pause"]


def test_a_change_in_several_windows_is_listed_once_from_the_newest():
    def change(step, ratio):
        return {
            "step": step,
            "until_step": step,
            "what": "step-time",
            "before_s": 1.0,
            "after_s": ratio,
            "ratio": ratio,
            "culprits": [],
        }

    older, newer = (
        result(changes=[change(8, 1.2), change(40, 1.5)]),
        result(changes=[change(41, 1.4)]),
    )
    found = combined(older, newer)["changes"]
    assert [(each["step"], each["ratio"]) for each in found] == [(8, 1.2), (41, 1.4)]


def test_fingerprint_combines_the_windows_shares():
    def with_variance(share):
        variance = {"between_stages": share, "between_workers": 0.1, "within_workers": 0.9 - share}
        return result(fingerprint={"variance": variance, "optype_share": {}, "stage_share": []})

    found = combined(with_variance(0.2), with_variance(0.4))["fingerprint"]
    assert found["optype_share"] == {
        "forward-compute": pytest.approx(0.75),
        "gc": pytest.approx(0.25),
    }
    assert found["stage_share"] == [0.2, 0.8]
    assert found["variance"]["between_stages"] == pytest.approx(0.3)


def test_a_finding_that_the_newest_window_lacks_has_ended():
    [found] = findings_of(result(finding(), steps=[40, 41]), result(steps=[42, 43]))
    assert found["end_step"] == 41
    assert found["sentence"] == (
        "dp 3, stage 1 on host-17 was 1.6x slower than its peers, from step 40 to step 41; "
        "it cost 15 % of the job's GPU time"
    )
    known = replace(finding(), evidence={"share_of_loss": 0.9, "steps": [38, 40]})
    [found] = findings_of(result(known, steps=[40, 41]), result(steps=[42, 43]))
    assert found["end_step"] == 40


def test_a_finding_of_the_newest_window_lasts():
    [found] = findings_of(result(finding()), result(), result(finding()))
    assert found["end_step"] is None
    assert " is 1.6x slower" in found["sentence"]


def unexplained(share, stop_share, stop_steps):
    return {
        **{"share": share, "share_of_loss": None, "optype": None, "share_in_optype": None},
        **{"stage": None, "share_in_stage": None, "late_launch_share": 0.0},
        **{"stop_share": stop_share, "stop_steps": stop_steps, "sentence": None},
    }


def test_stops_of_the_unexplained_loss_are_those_of_all_windows():
    parts = [
        window_result(unexplained=left, step_time_s={"recorded": [1.0]})
        for left in (unexplained(0.11, 0.0, []), unexplained(0.1, 0.5, [12]))
    ]
    found = combined_unexplained(parts)
    assert found is not None
    assert found.stop_steps == (12,)
    assert found.sentence is not None
    assert found.sentence.endswith("most of it in stops of all workers (in or before step 12)")


def test_missing_worker_is_first_and_leads_only_alone():
    silent = results.finding("silent-worker", cost=None)
    slow = results.finding(cost=0.3, score=0.9)
    assert sorted([slow, silent], key=by_cost) == [silent, slow]
    assert leading([silent, slow]) is slow
    assert leading([silent]) is silent
    assert leading(None) is None


def test_a_fact_of_some_windows_has_its_share_of_the_time_of_all_that_were_examined():
    windows = [
        result(observations=[]),
        result(recorded_s=30.0, observations=[idle(0.06)]),
        result(observations=None),  # not examined
        result(observations=[idle(0.02)]),
    ]
    [fact] = combined(*windows)["observations"]
    assert fact["share"] == pytest.approx((30 * 0.06 + 10 * 0.02) / 50)
    assert fact["sentence"] == idle(0.04)["sentence"]
    assert combined(result(observations=[]))["observations"] == []
    assert combined(result(observations=None)).get("observations") is None
