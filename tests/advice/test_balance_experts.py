import json
from dataclasses import replace

import pytest

from app.advice.balance_experts import balance_experts
from app.advice.facts import Facts
from app.errors import InvalidRequest
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.advice.cases import case_of, fix_of, refusal_of

JOB = SimulatedJob(Parallelism(4, 2, 8, ep_size=4), 8)
# The first rank has 40 + 4 of 80, 2.2 times the mean.
LOADS = (40.0, 4.0, 10.0, 6.0, 8.0, 4.0, 6.0, 2.0)


@pytest.fixture(scope="module")
def case():
    return case_of(JOB, Facts(expert_loads=LOADS, expert_share=0.5))


def test_experts_share_of_the_step_shrinks_with_the_fullest_rank(case):
    fix = fix_of(balance_experts(case))
    ranks = json.loads(fix.paste[0].text)["experts_of_ep_rank"]
    copies = json.loads(fix.paste[0].text)["copies"]
    load = [sum(LOADS[each] / copies[each] for each in ranks[str(rank)]) for rank in range(4)]
    assert sum(load) == pytest.approx(sum(LOADS))
    factor = 1 - 0.5 * (1 - max(load) / 44)
    after = replace(
        JOB,
        costs=replace(
            JOB.costs,
            forward_s=JOB.costs.forward_s * factor,
            backward_s=JOB.costs.backward_s * factor,
        ),
    )
    assert fix.step_s == pytest.approx(case_of(after).step_s, rel=0.005)
    assert "imbalance 2.20 to 1.0" in fix.title
    assert fix.change.is_question


def test_copies_stay_within_the_memory_that_the_risk_names(case):
    fix = fix_of(balance_experts(case))
    ranks = json.loads(fix.paste[0].text)["experts_of_ep_rank"]
    assert max(map(len, ranks.values())) <= 3
    assert "1 more expert" in fix.risk


@pytest.mark.parametrize(
    ("facts", "reason", "need"),
    [
        (Facts(), "how many tokens", "expert_loads"),
        (Facts(expert_loads=LOADS), "2.20 times the mean load, 1.0", "expert_share"),
        (Facts(expert_loads=LOADS[:7], expert_share=0.5), "7 experts over 4", None),
        (Facts(expert_loads=(5.0,) * 8, expert_share=0.5), "are balanced", None),
        (Facts(expert_loads=LOADS, expert_share=0.0), "not what the step waits for", None),
    ],
)
def test_what_is_not_told_is_asked_for(case, facts, reason, need):
    found = refusal_of(balance_experts(replace(case, facts=facts)))
    assert reason in found.reason
    assert [*found.needs] == [] if need is None else need == found.needs[0].fact


def test_job_without_expert_parallelism_has_none_to_move():
    facts = Facts(expert_loads=LOADS, expert_share=0.5)
    found = refusal_of(balance_experts(case_of(SimulatedJob(Parallelism(2, 2, 8), 8), facts)))
    assert "no expert parallelism" in found.reason


def test_share_is_a_share():
    with pytest.raises(InvalidRequest, match="give 0 to 1"):
        Facts(expert_share=40.0)
