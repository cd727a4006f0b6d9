"""Addresses that serve and demo print: reachable, and without the token in a log."""

import re

import pytest

from app.cli.supervisor import address_lines, page_url, remote_access_hint
from app.settings import load_settings

TOKEN = "pl_" + "t" * 40


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8642"),
        ("0.0.0.0", "http://127.0.0.1:8642"),
        ("::", "http://[::1]:8642"),
        ("gpu-node-7", "http://gpu-node-7:8642"),
    ],
)
def test_page_url_replaces_wildcard_hosts_with_loopback(host, url):
    assert page_url(load_settings(host=host, public=True)) == url


@pytest.mark.parametrize("name", ["localhost", "localhost.localdomain", ""])
def test_links_of_a_machine_without_a_name_point_to_its_address(monkeypatch, name):
    monkeypatch.setattr("socket.gethostname", lambda: name)
    url = load_settings(host="0.0.0.0", public=True).pages_url
    assert re.fullmatch(r"http://[0-9.]+:8642", url)


@pytest.mark.parametrize(
    ("given", "is_printed"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({"host": "0.0.0.0", "allowed_hosts": "a.test"}, False),
        ({"host": "0.0.0.0", "public_url": "https://a.test"}, False),
        ({"host": "10.0.0.1"}, False),
    ],
)
def test_listening_on_all_addresses_prints_the_allowed_hosts_hint(given, is_printed):
    lines = remote_access_hint(load_settings(public=True, **given))
    assert any("PACELINE_ALLOWED_HOSTS" in line for line in lines) == is_printed


def test_token_or_its_location_is_printed(tmp_path):
    settings = load_settings(data_dir=tmp_path)
    text = "\n".join(address_lines(settings, TOKEN, is_terminal=True))
    assert f"/#token={TOKEN}" in text
    assert address_lines(settings, TOKEN, is_terminal=False)[1] == "Token:  in PACELINE_TOKEN"
    settings.token_file.write_text(f"{TOKEN}\n")
    lines = address_lines(settings, TOKEN, is_terminal=False)
    assert lines[1] == f"Token:  in {settings.token_file}"
    assert TOKEN not in "".join(lines)
