"""Evidence as a reader sees it: every figure of every cause has words and a unit."""

import ast
from pathlib import Path

import pytest

import app.diagnosis
from app import formatting

_DIAGNOSIS = Path(app.diagnosis.__file__).parent
# Functions whose dictionaries become evidence; a call's keyword `evidence` does, too.
_MAKERS = {"_evidence", "_places", "device_figures", "workers_evidence"}


def keys_in(node):
    """The constant keys of all dictionaries below a node, and those of f-strings."""
    for each in ast.walk(node):
        for key in each.keys if isinstance(each, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value
            elif isinstance(key, ast.JoinedStr):
                yield from ("".join(_part(part, word) for part in key.values) for word in _AGAINST)


_AGAINST = ("peers", "itself")


def _part(part, word):
    return part.value if isinstance(part, ast.Constant) else word


def evidence_keys():
    """What the detectors may put into the evidence of a finding, read from their source."""
    found, makers = set(), set()
    for path in _DIAGNOSIS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_maker = False
            if isinstance(node, ast.FunctionDef) and node.name in _MAKERS:
                is_maker = True
                makers.add(node.name)
            if is_maker or (isinstance(node, ast.keyword) and node.arg == "evidence"):
                found.update(keys_in(node))
    assert makers == _MAKERS, "a function that makes evidence was renamed"
    of_the_gpu = {"sm_clock_mhz", "temperature_c", "power_w", "xid"}
    return found | of_the_gpu | {"arrivals", "pearson_r", "coefficient_of_variation"}


@pytest.fixture
def rows(stocked, open_page):
    """A function that gives the rows of a finding as the page writes them."""
    page = open_page(stocked.link("/jobs/slow-worker")).page

    def written(finding):
        return page.evaluate(
            """async finding => {
                const { evidenceRows } = await import("/static/js/components/findings-card.js")
                return Object.fromEntries(evidenceRows(finding))
            }""",
            finding,
        )

    return written


@pytest.fixture
def known_keys(stocked, open_page):
    """The keys of evidence for which the page has words."""
    return open_page(stocked.link("/jobs/slow-worker")).page.evaluate(
        "import('/static/js/components/findings-card.js').then(module => module.KNOWN_KEYS)"
    )


def test_every_evidence_key_of_every_cause_has_a_label(known_keys):
    keys = evidence_keys()
    assert {"pauses", "times_as_long", "interrupted", "mean_wait_s", "steps_missed"} <= keys
    assert keys - set(known_keys) == set()


def test_evidence_figures_have_units_and_long_lists_are_cut(rows):
    finding = {
        "onset_step": 1204,
        "persistence": "chronic",
        "evidence": {
            "forward_slowdown": 1.638,
            "share_of_loss": 1.03,
            "mean_pause_s": 0.2504,
            "sm_clock_mhz": 1100.0,
            "coefficient_of_variation": 0.213,
            "workers": [[dp, 1] for dp in range(11)],
            "steps": [3, 4, 5, 9],
            "reported_by_client": False,
            "every_steps": None,
            "a_figure_of_tomorrow": 7,
        },
    }
    assert rows(finding) == {
        "Since": ["step 1,204"],
        "Lasts": "most steps",
        "Forward, against the others": "1.64\u00d7",
        "Share of the loss": "103\u202f%",
        "Mean pause": "250 ms",
        "GPU clock": "1,100 MHz",
        "A worker's computations vary by": "21\u202f% of their mean",
        "Workers": "; ".join(f"dp {dp}, stage 1" for dp in range(8)) + " and 3 more",
        "Seen in steps": "3 to 5, 9",
        "Reported by the client": "no",
        "A figure of tomorrow": "7",
    }


def test_a_finding_links_to_its_worker_and_host(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/jobs/shared-host-a")).page
    finding = page.locator(".findings li").first
    expect(finding.locator("h3")).to_have_text(
        "Slow worker: node-shared-07, ranks 40 to 47 (dp 1, stage 1)"
    )
    expect(finding.locator("p").first).to_contain_text("its peers")
    links = finding.locator(".sure a")
    expect(links.nth(0)).to_have_attribute("href", "/jobs/shared-host-a/workers/1-1")
    expect(links.nth(1)).to_have_attribute("href", "/hosts/node-shared-07")
    elsewhere = page.get_by_label("Host in other jobs")
    expect(elsewhere).to_contain_text("shared-host-b")
    expect(elsewhere).to_contain_text("Slow in the other job that it was part of, too.")


def test_confidence_is_written_as_the_server_writes_it(stocked, open_page):
    page = open_page(stocked.link("/jobs/slow-worker")).page
    shares = [0.05, 0.125, 0.594, 0.595, 0.6, 0.794, 0.795, 0.8, 0.985, 0.99]
    written = page.evaluate(
        """async shares => {
            const { confidenceWords } = await import("/static/js/lib/formatting.js")
            return shares.map(confidenceWords)
        }""",
        shares,
    )
    assert written == [formatting.confidence(share) for share in shares]
