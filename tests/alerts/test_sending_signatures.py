import base64

import pytest

from app.alerts.sending import check_secret, signature_headers
from app.errors import InvalidRequest
from tests.alerts.notices import SECRET


def test_the_known_answer_of_the_specifications_libraries():
    headers = signature_headers(
        ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        '{"test": 2432232314}',
        1614265330.9,
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_each_attempt_is_signed_anew_under_the_same_id():
    first, second = (signature_headers([SECRET], "msg_1", "{}", at_s) for at_s in (1e9, 1e9 + 5))
    assert first["webhook-id"] == second["webhook-id"]
    assert first["webhook-signature"] != second["webhook-signature"]


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        "whsec_c2hvcnQ=",
        "whsec_!" + "c2VjcmV0" * 5,
        "c2VjcmV0" * 5,
        "whsec_" + base64.b64encode(b"x" * 65).decode(),
        "whsec_\u00e4" + "c2VjcmV0" * 5,
    ],
)
def test_a_short_secret_is_refused(secret):
    with pytest.raises(InvalidRequest, match="whsec_") as refusal:
        check_secret(secret)
    assert not secret.removeprefix("whsec_") or secret not in str(refusal.value)
