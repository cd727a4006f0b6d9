import json
import re

import pytest

from app.api.http.middleware import CSP
from app.api.pages import FrontendFiles, frontend_dir
from app.result.causes import CAUSES

pytestmark = pytest.mark.anyio

EVERYWHERE = [
    ("GET", "/"),
    ("GET", "/jobs/llm-70b"),
    ("GET", "/static/index.html"),
    ("GET", "/static/nothing"),
    ("GET", "/static/plotly.min.js"),
    ("GET", "/docs"),
    ("GET", "/docs/on-call"),
    ("GET", "/docs/api"),
    ("GET", "/openapi.json"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/nothing"),
    ("GET", "/api/v1/jobs"),
    ("GET", "/api/v1/jobs/none"),
    ("PUT", "/api/v1/jobs/none"),
    ("POST", "/api/v1/session"),
    ("DELETE", "/api/v1/jobs"),
]


async def test_every_answer_has_the_security_headers(api):
    for method, path in EVERYWHERE:
        headers = (await api.client.request(method, path)).headers
        assert headers["content-security-policy"] == CSP, path
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["referrer-policy"] == "no-referrer", path
        assert headers["cross-origin-opener-policy"] == "same-origin-allow-popups", path
        assert len(headers["x-request-id"]) == 32, path
        assert not headers.keys() & {"server", "access-control-allow-origin"}, path
        if path.startswith("/api/"):
            assert headers["cache-control"] == "no-store", path


async def test_the_page_is_served_at_its_own_addresses(api):
    async with api.anonymous_client() as client:
        for path in ("/", "/jobs/llm-70b", "/jobs/no-such-job"):
            answer = await client.get(path)
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert answer.headers["cache-control"] == "no-cache"
            assert "<title>Paceline</title>" in answer.text


READER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_unknown_address_gets_the_not_found_page(api, method):
    async with api.anonymous_client() as client:
        for path in ("/nothing", "/jobs", "/jobs/a/b", "/apis", "/alerts/"):
            answer = await client.request(method, path, headers=READER)
            assert answer.status_code == 404, path
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert answer.headers["content-security-policy"] == CSP
            assert ("<title>Paceline</title>" in answer.text) == (method == "GET")


async def test_unknown_address_gets_a_problem_for_programs(api):
    for method, path, headers in (
        ("GET", "/nothing", {"accept": "application/json"}),
        ("GET", "/nothing", {}),
        ("POST", "/nothing", READER),
        ("GET", "/api", READER),
        ("GET", "/api/v1/nothing", READER),
        ("GET", "/api/v1/jobs/none", READER),
        ("GET", "/static/nothing", READER),
    ):
        answer = await api.client.request(method, path, headers=headers)
        assert answer.status_code == 404, path
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] in {"not_found", "job_not_found"}


async def test_cached_page_gets_304(api):
    for path in ("/", "/static/js/lib/api.js", "/static/plotly.min.js"):
        etag = (await api.client.get(path)).headers["etag"]
        again = await api.client.get(path, headers={"if-none-match": etag})
        assert again.status_code == 304
        assert again.content == b""


async def test_plotly_is_cached_by_version(api):
    page = (await api.client.get("/")).text
    address = next(part for part in page.split('"') if "plotly.min.js" in part)
    answer = await api.client.get(address)
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-encoding"] == "gzip"
    assert len(answer.content) > 1_000_000
    other = await api.client.get("/static/plotly.min.js?v=0")
    assert other.headers["cache-control"] == "no-cache"


async def test_files_outside_the_frontend_are_not_served(api):
    outside = ("..%2fpyproject.toml", "%2e%2e/app/main.py", "..\\app\\main.py", "/etc/passwd")
    for path in (*outside, "%00"):
        assert (await api.client.get(f"/static/{path}")).status_code == 404, path


async def test_file_of_the_documentation_leads_to_its_page(api):
    for path, address in (
        ("/docs/feeds/README", "/docs/feeds"),
        ("/docs/on-call.md", "/docs/on-call"),
        ("/docs/README.md", "/docs"),
    ):
        answer = await api.client.get(path)
        assert (answer.status_code, answer.headers["location"]) == (307, address)
        assert "<h1" in (await api.client.get(address)).text


async def test_unknown_page_of_the_documentation_is_a_page_with_the_list(api):
    answer = await api.client.get("/docs/nothing<b>")
    assert answer.status_code == 404
    assert "nothing&lt;b&gt;" in answer.text
    assert 'href="/docs/on-call"' in answer.text


async def test_definitions_are_read_by_anybody_and_kept_by_the_browser(api):
    async with api.anonymous_client() as client:
        answer = await client.get("/docs/definitions.json")
        tag = answer.headers["etag"]
        again = await client.get("/docs/definitions.json", headers={"if-none-match": tag})
    assert answer.json()["gpu_time_wasted"]["name"] == "GPU time lost"
    assert again.status_code == 304


async def test_reference_lists_every_operation_and_error_without_external_scripts(api):
    page = (await api.client.get("/docs/api")).text
    for path, methods in api.app.openapi()["paths"].items():
        for method, operation in methods.items():
            assert f'id="{operation["operationId"]}"' in page
            assert f"{method.upper()} {path}" in page
    assert "//" not in page.replace("https://", "").replace("http://", "")
    assert 'src="http' not in page
    assert 'href="http' not in page
    codes = re.findall(r'id="error-(\w+)"', page)
    assert {"not_ready", "method_not_allowed", "internal", "limit_runs"} <= set(codes)
    assert len(codes) == len(set(codes))
    problem = (await api.client.get("/api/v1/jobs/none")).json()
    assert f'id="{problem["type"].partition("#")[2]}"' in page


async def test_every_page_carries_the_words_for_causes(api):
    page = (await api.client.get("/", headers=READER)).text
    rows = json.loads(
        re.findall(r'<script id="causes" type="application/json">(.*?)</script>', page)[0]
    )
    assert list(rows) == list(CAUSES)
    assert rows["late-host"] == {
        "label": "late host", "chart": "waited-for", "nobody": "no single worker",
        "nobody_note": "", "question": "", "asks": "",
    }  # fmt: skip
    assert rows["gc-pause"]["question"] == "No garbage collection pauses"


async def test_common_refusals_are_documented(api):
    for path, methods in api.app.openapi()["paths"].items():
        for method, operation in methods.items():
            wanted = {"421", "500"}
            if path.startswith("/api/"):
                wanted |= {"429", "503"}
            if path.startswith("/api/") and operation.get("security") != []:
                wanted |= {"401", "403", "422"}
            if method != "get":
                wanted |= {"400", "408", "413", "415"}
            # A chart of the fleet is one of five, or it is refused with 422.
            if "{" in path and operation["operationId"] != "get_fleet_chart":
                wanted |= {"404"}
            assert wanted <= set(operation["responses"]), f"{method} {path}"


async def test_openapi_document_is_complete(api):
    document = (await api.client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["operationId"]
            assert operation["summary"]
            assert operation["tags"]
            assert operation["description"]
            if path.startswith("/api/") and operation.get("security") != []:
                assert {"401", "403", "422", "503"} <= set(operation["responses"])
    referred = {
        part.partition('"')[0] for part in str(document).replace("'", '"').split("schemas/")[1:]
    }
    assert referred <= set(schemas)
    assert document["security"] == [{"token": []}, {"session": []}]


async def test_styles_of_a_page_are_one_file_in_the_order_of_the_page(api):
    page = (await api.client.get("/")).text
    [address] = re.findall(r'rel="stylesheet" href="([^"]+)"', page)
    styles = (await api.client.get(address)).text
    html = (frontend_dir() / "index.html").read_text()
    sheets = re.findall(r'rel="stylesheet" href="/static/([^"]+)"', html)
    assert len(sheets) > 20
    assert styles == "\n".join((frontend_dir() / name).read_text() for name in sheets)


async def test_scripts_and_styles_are_named_by_their_version_and_kept(api):
    page = (await api.client.get("/")).text
    named = re.findall(r'(?:src|href)="(/static/v[^"]+)"', page)
    assert len(named) == 3  # styles, the theme, the page's script
    for address in named:
        answer = await api.client.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["content-encoding"] == "gzip"
        other = re.sub(r"/v[0-9a-f]{12}/", "/v000000000000/", address)
        answer = await api.client.get(other)  # of a release that is being replaced
        assert answer.headers["cache-control"] == "no-cache"
    assert (await api.client.get("/static/js/app.js")).headers["cache-control"] == "no-cache"


def plain(files, name):
    found = files.find(name)
    assert found is not None
    return found[0].plain


def test_a_changed_file_is_read_anew_and_changes_the_version(tmp_path, monkeypatch):
    (tmp_path / "index.html").write_text('<link rel="stylesheet" href="/static/css/a.css">\n')
    (tmp_path / "a.js").write_text("1")
    now_s = iter(range(0, 100, 10))
    monkeypatch.setattr("app.api.pages.time.monotonic", lambda: float(next(now_s)))
    files = FrontendFiles(tmp_path)
    first = files.version()
    assert plain(files, "a.js") == b"1"
    (tmp_path / "a.js").write_text("22")
    assert plain(files, "a.js") == b"22"
    assert files.version() != first
    # Neither directories nor links, which could lead out of it, are files.
    (tmp_path / "link.js").symlink_to("/etc/passwd")
    assert (files.find("link.js"), files.find("css"), files.find("")) == (None, None, None)
