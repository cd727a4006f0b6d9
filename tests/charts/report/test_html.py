"""A report says what the result says, whole, and draws it without anything from elsewhere."""

import dataclasses
import json
import re
from html import unescape

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from app import formatting
from app.charts.report.html import Assets, html_report
from app.diagnosis.job_history import History
from app.monitor import analysed
from app.result.finding import Culprit, ObservationRecord
from app.result.window_result import SkippedStepRecord
from app.synth.faults.slow_compute import SlowWorker
from tests.charts.results import unpacked
from tests.diagnosis.jobs import made, window_of
from tests.results import idle

ASSETS = Assets(script_gz=b"Plotly", font=b"Inter")
HOSTILE = '</script><script>alert(1)</script><!-- "\u202e'


@pytest.fixture(scope="module")
def window():
    return window_of(made(SlowWorker(2, 1, 1.6), dp=4, pp=2, microbatches=4), num_steps=4)


@pytest.fixture(scope="module")
def result(window):
    _, result, _ = analysed(window, History())
    return result


def page_of(result, hosts=None, state="straggling"):
    return html_report(result, state=state, hosts=hosts or {}, assets=ASSETS)


def figures_of(page):
    """What its script reads: figures by theme and name."""
    [text] = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', page)
    return json.loads(text)


def test_report_has_the_figures_in_both_themes(result):
    drawn = figures_of(page_of(result))
    assert sorted(drawn) == ["dark", "light"]
    for figures in drawn.values():
        cells = unpacked(figures["workers"]["data"][0]["z"])
        np.testing.assert_allclose(np.transpose(cells), result.worker_slowdown)
        recorded = next(each for each in figures["steps"]["data"] if each["name"] == "recorded")
        np.testing.assert_allclose(unpacked(recorded["y"]), result.step_time_s.recorded)
    light, dark = drawn["light"]["workers"], drawn["dark"]["workers"]
    assert light["data"][0]["colorscale"] != dark["data"][0]["colorscale"]


def test_report_has_sentence_figures_and_evidence_as_text(result):
    page = page_of(result)
    [finding] = result.findings
    assert ", ranks 48 to 55 (dp 2, stage 1) is " in page
    assert f'<dd class="figure">{formatting.ratio(result.slowdown)}</dd>' in page
    assert f'<dd class="figure">{formatting.percent(result.gpu_time_wasted)}</dd>' in page
    assert f"<b>{formatting.percent(finding.cost)}</b> of GPU time" in page
    assert f"high confidence, {formatting.percent(finding.confidence)}" in page
    assert "<dt>Workers</dt><dd>dp 2 stage 1</dd>" in page
    for cause in result.ruled_out:
        assert formatting.with_times_sign(cause.reason)[1:] in unescape(page)
    assert "Show table" in page


def test_report_fetches_nothing(result):
    page = page_of(result)
    assert "default-src 'none'" in page
    assert re.findall(r"(?:src|href|action)=", page) == []
    assert re.findall(r"https?://|url\((?!data:)|@import", page) == []


def test_text_from_workers_is_escaped(result, window):
    job = replace(result.job, name=HOSTILE)
    hosts = dict.fromkeys([(dp, stage) for dp in range(4) for stage in range(2)], HOSTILE)
    finding = result.findings[0]
    finding = replace(
        finding,
        sentence=HOSTILE,
        culprits=(Culprit(2, 1, HOSTILE),),
        evidence={**finding.evidence, "hosts": [HOSTILE]},
    )
    skipped = (SkippedStepRecord(step=9, reason=HOSTILE),)
    page = page_of(
        replace(result, job=job, findings=(finding,), skipped_steps=skipped), hosts=hosts
    )
    plain = page_of(result)
    assert page.count("<script") == plain.count("<script") == 3
    assert page.count("</script") == plain.count("</script")
    assert "<!--" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;alert(1)" in page
    figures_of(page)
    [figures] = re.findall(r'id="figures">(.*)</script>', page)
    assert "\\u003cb" in figures  # Plotly's own tags
    assert "<" not in figures


def test_low_fidelity_withholds_charts_that_blame(result):
    fidelity = replace(result.fidelity, discrepancy=0.081, verdict="low")
    page = page_of(replace(result, fidelity=fidelity, findings=None), state="low-fidelity")
    # Waits are measured by each rank's own clock, and not replayed.
    assert sorted(figures_of(page)["light"]) == ["steps", "waited-for"]
    assert "low, over the limit 5 %" in page
    assert "8.1 % off" in page
    assert "The data allow no diagnosis" in page


def test_unknown_figures_are_reported_as_not_measured(result):
    clocks = replace(result.clocks, residual_ms=None, reason="no samples sent")
    unknown = replace(result, m_w=None, m_s=None, clocks=clocks, unexplained_share=None)
    page = page_of(replace(unknown, findings=(), ruled_out=None, arrivals=None))
    assert page.count('<dd class="figure is-unknown">not measured</dd>') == 2
    assert "no samples sent" in page
    assert "Nothing stands out." in page
    assert "NaN" not in page


def test_a_job_of_one_stage_has_no_chart_of_stages(window):
    one = window_of(made(SlowWorker(2, 0, 1.6), dp=4, pp=1, microbatches=4), num_steps=2)
    _, result, _ = analysed(dataclasses.replace(one, skipped=()), History())
    assert "stages" not in figures_of(page_of(result))["light"]


@pytest.mark.parametrize("share", [0.02, 0.054])
@pytest.mark.parametrize("has_findings", [True, False])
def test_a_fact_without_a_cause_is_said_once_under_the_findings(result, share, has_findings):
    facts = (msgspec.convert(idle(share), ObservationRecord),)
    findings = result.findings if has_findings else ()
    calm = replace(result, arrivals=None, unexplained_share=None, unexplained=None)
    page = page_of(replace(calm, findings=findings, observations=facts))
    [card] = re.findall(r'<section class="card findings">.*?</section>', page, re.DOTALL)
    assert card.count(idle(share)["sentence"]) == 1
    assert ("Nothing stands out." in card) is (share < 0.03 and not has_findings)
