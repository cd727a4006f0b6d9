import base64
import json
from dataclasses import astuple, replace

import pytest

from app.alerts.picture_links import (
    LINK_VALID_S,
    PICTURES_PATH,
    Picture,
    SignedPictureLinks,
    sign_link,
    verify_link,
)

KEY = b"k" * 32
NOW_S = 1_790_000_000.0
PICTURE = Picture("default", "llm-70b", "2-1220", "workers", "light", int(NOW_S) + 60)


def test_a_signed_link_names_job_and_window():
    assert verify_link(sign_link(PICTURE, KEY), KEY, NOW_S) == PICTURE
    longest = replace(PICTURE, project="p" * 31, job="j" * 96, window="999999999-" + "9" * 16)
    assert verify_link(sign_link(longest, KEY), KEY, NOW_S) == longest


def test_a_link_is_good_until_its_time_is_over():
    link = sign_link(PICTURE, KEY)
    assert verify_link(link, KEY, PICTURE.expires_s - 1) == PICTURE
    assert verify_link(link, KEY, PICTURE.expires_s) is None


def test_a_link_of_another_key_is_none():
    assert verify_link(sign_link(PICTURE, b"o" * 32), KEY, NOW_S) is None


def test_every_single_character_counts():
    link = sign_link(PICTURE, KEY)
    for at, char in enumerate(link):
        changed = f"{link[:at]}{'A' if char != 'A' else 'B'}{link[at + 1 :]}"
        assert verify_link(changed, KEY, NOW_S) is None, at
        assert verify_link(link[:at] + link[at + 1 :], KEY, NOW_S) is None, at


@pytest.mark.parametrize("link", ["", ".png", "a.b.png", "é" * 50, "x" * 5000, "\0", "../../x.png"])
def test_what_is_no_link_is_none(link):
    assert verify_link(link, KEY, NOW_S) is None


def test_what_was_not_sealed_is_not_looked_into():
    bomb = base64.urlsafe_b64encode(b"[" * 400).decode().rstrip("=")
    assert verify_link(f"{bomb}.{'A' * 43}.png", KEY, NOW_S) is None


def test_the_heatmap_s_link_names_the_window_for_seven_days():
    url = SignedPictureLinks("https://paceline.example/", KEY).heatmap("research/llm", "1-8", NOW_S)
    assert url.startswith("https://paceline.example" + PICTURES_PATH)
    expires_s = int(NOW_S + LINK_VALID_S)
    expected = Picture("research", "llm", "1-8", "workers", "light", expires_s)
    assert verify_link(url.rpartition("/")[2], KEY, NOW_S) == expected
    said = url.rpartition("/")[2].partition(".")[0]
    shown = json.loads(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)))
    assert tuple(shown) == astuple(expected)


def test_the_key_is_never_shown():
    assert "k" * 32 not in repr(SignedPictureLinks("https://paceline.example", KEY))
