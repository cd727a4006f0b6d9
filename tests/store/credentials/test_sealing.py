import base64

import pytest

from app.errors import SecretsLocked, StartUpFailed
from app.store.credentials.sealing import SecretKeys, key_id, new_key, parse_keys

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
PLACE = "endpoints/hook"


def test_sealed_text_opens_with_its_key_and_shows_nothing():
    keys = SecretKeys([OLD])
    sealed = keys.seal(b"https://hooks.example/T0/B0", PLACE)
    assert keys.open(sealed, PLACE) == b"https://hooks.example/T0/B0"
    assert sealed.startswith(f"v1.{key_id(OLD)}.")
    assert "hooks" not in sealed
    assert keys.seal(b"https://hooks.example/T0/B0", PLACE) != sealed  # a nonce of its own


def test_text_is_bound_to_its_row():
    keys = SecretKeys([OLD])
    with pytest.raises(SecretsLocked, match="belong to another row"):
        keys.open(keys.seal(b"secret", PLACE), "endpoints/other")


@pytest.mark.parametrize("at", [12, -6])
def test_changed_text_is_refused(at):
    keys = SecretKeys([OLD])
    sealed = list(keys.seal(b"secret", PLACE))
    sealed[at] = "B" if sealed[at] == "A" else "A"
    with pytest.raises(SecretsLocked, match="were changed"):
        keys.open("".join(sealed), PLACE)


def test_newest_key_seals_and_older_ones_open():
    before = SecretKeys([OLD]).seal(b"secret", PLACE)
    both = SecretKeys([NEW, OLD])
    assert both.open(before, PLACE) == b"secret"
    assert both.seal(b"secret", PLACE).split(".")[1] == key_id(NEW)


def test_missing_and_wrong_keys_are_told_apart():
    sealed = SecretKeys([OLD]).seal(b"secret", PLACE)
    with pytest.raises(SecretsLocked, match="there is no key: the operator sets PACELINE_SECRET"):
        SecretKeys().open(sealed, PLACE)
    with pytest.raises(SecretsLocked, match=f"key {key_id(OLD)}, which this service does not have"):
        SecretKeys([NEW]).open(sealed, PLACE)
    with pytest.raises(SecretsLocked, match="cannot be stored, as there is no key"):
        SecretKeys().seal(b"secret", PLACE)


def test_keys_are_read_in_either_alphabet_of_base64_newest_first():
    key = b"\xfb\xef" * 16
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = f"{encode(key).decode()},\n{new_key()}\n"
        assert parse_keys(text, "TEST").newest_id == key_id(key)


@pytest.mark.parametrize("text", ["", " ,\n", "hunter2", "A" * 43, "q3v" * 13])
def test_what_is_no_key_is_refused_without_being_shown(text):
    with pytest.raises(StartUpFailed) as refused:
        parse_keys(text, "PACELINE_SECRET_KEY")
    assert str(refused.value).startswith("PACELINE_SECRET_KEY")
    assert not text.strip(" ,\n") or text not in str(refused.value)
