from dataclasses import replace

import pytest

from app.advice.commands import can_be_pasted, drain_commands, host_needs, hosts_of
from app.advice.facts import Facts
from app.advice.fix import Need
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.advice.cases import case_of


@pytest.fixture(scope="module")
def case():
    return case_of(SimulatedJob(Parallelism(2, 2, 8), 4))


def test_hosts_are_named_once_in_order(case):
    hosts = case.replay.window.hosts
    found = hosts_of(case, [(1, 1), (0, 0), (1, 1), (9, 9)])
    assert found == sorted({hosts[1, 1], hosts[0, 0]})


def test_commands_are_for_the_scheduler_in_use(case):
    every = drain_commands(case, ["a", "b"], "slow network", restarts=False)
    assert [each.text for each in every] == [
        "scontrol update node=a,b state=drain reason='paceline: slow network'",
        "kubectl cordon a\nkubectl cordon b",
    ]
    slurm = replace(case, facts=Facts(scheduler="slurm"))
    restarted = drain_commands(slurm, ["a"], "slow worker", restarts=True)
    assert [each.text for each in restarted][1:] == ["sbatch --exclude=a JOB_SCRIPT"]
    kubernetes = replace(case, facts=Facts(scheduler="kubernetes"))
    assert len(drain_commands(kubernetes, ["a"], "slow worker", restarts=True)) == 1


@pytest.mark.parametrize(
    "name", ["", "-x", "--all", "ALL", "All", "a;b", "n[1-9]", "a,b", "a b", "a\n", "a" * 254, "ä"]
)
def test_unsafe_names_are_in_no_command(case, name):
    assert not can_be_pasted(["host-1", name])
    assert drain_commands(case, ["host-1", name], "slow worker", restarts=True) == ()
    assert "safe in a command" in host_needs(case, [name])[0].text


@pytest.mark.parametrize("name", ["host-1", "gpu042.rack-7.example", "10.0.0.7", "allen", "A_1"])
def test_usual_names_are_safe(case, name):
    assert can_be_pasted([name])


def test_unknown_host_and_scheduler_are_asked_for(case):
    assert host_needs(case, []) == (Need("the worker's host name (host= of the recorder)"),)
    assert "scheduler" in host_needs(case, ["a"])[0].text
    assert host_needs(replace(case, facts=Facts(scheduler="slurm")), ["a"]) == ()
