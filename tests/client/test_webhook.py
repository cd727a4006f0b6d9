"""The verification helper for receivers, against the standardwebhooks package as sender."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline_client.webhook import NotGenuine, verify
from standardwebhooks.webhooks import Webhook

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + "b2xkZXIh" * 4
NOW_S = 1614265330
BODY = '{"test": 2432232314}'


def headers(*, secrets=(SECRET,), body=BODY, message_id="msg_1", at_s=NOW_S):
    at = datetime.fromtimestamp(at_s, UTC)
    return {
        "Webhook-Id": message_id,
        "Webhook-Timestamp": str(at_s),
        "Webhook-Signature": " ".join(
            Webhook(secret).sign(message_id, at, body) for secret in secrets
        ),
    }


def test_known_vector_of_the_standard_webhooks_libraries_verifies():
    known = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert verify(known, BODY.encode(), SECRET, NOW_S) == {"test": 2432232314}


@pytest.mark.parametrize("sent", [(SECRET,), (OTHER,), (SECRET, OTHER), (OTHER, SECRET)])
@pytest.mark.parametrize("known", [[SECRET, OTHER], [OTHER, SECRET]])
def test_any_shared_secret_verifies_during_a_rotation(sent, known):
    assert verify(headers(secrets=sent), BODY.encode(), known, NOW_S)


def test_signature_of_another_secret_is_refused():
    with pytest.raises(NotGenuine, match="no signature matches"):
        verify(headers(), BODY.encode(), OTHER, NOW_S)


@pytest.mark.parametrize("late_s", [-301, 301, 86_400, -NOW_S])
def test_message_replayed_later_is_refused(late_s):
    with pytest.raises(NotGenuine, match="too old or from the future"):
        verify(headers(), BODY.encode(), SECRET, NOW_S + late_s)


@pytest.mark.parametrize("late_s", [-300, 0, 300])
def test_clocks_may_differ_by_five_minutes(late_s):
    assert verify(headers(), BODY.encode(), SECRET, NOW_S + late_s)


@pytest.mark.parametrize(
    "change",
    [
        {"Webhook-Id": "msg_2"},
        {"Webhook-Id": ""},
        {"Webhook-Timestamp": str(NOW_S + 1)},
        {"Webhook-Timestamp": "soon"},
        {"Webhook-Timestamp": "-5"},
        {"Webhook-Timestamp": "\u0661"},
        {"Webhook-Timestamp": "9" * 400},
        {"Webhook-Signature": ""},
        {"Webhook-Signature": "v1,"},
        {"Webhook-Signature": "v1"},
        {"Webhook-Signature": "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
        {"Webhook-Signature": "v1,\u00e4"},
    ],
    ids=repr,
)
def test_message_with_altered_headers_is_refused(change):
    with pytest.raises(NotGenuine):
        verify({**headers(), **change}, BODY.encode(), SECRET, NOW_S)


@given(st.integers(0, len(BODY) - 1), st.integers(1, 255))
def test_message_with_an_altered_byte_is_refused(place, change):
    body = bytearray(BODY.encode())
    body[place] ^= change
    with pytest.raises(NotGenuine):
        verify(headers(), bytes(body), SECRET, NOW_S)


@pytest.mark.parametrize("secret", ["", "whsec_", "secret", "whsec_!!"])
def test_malformed_secret_raises_value_error(secret):
    with pytest.raises(ValueError, match="whsec_"):
        verify(headers(), BODY.encode(), secret, NOW_S)


def test_empty_secret_list_refuses_every_message():
    with pytest.raises(NotGenuine):
        verify(headers(), BODY.encode(), [], NOW_S)
