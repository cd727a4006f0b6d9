"""No spelling, name, answer of a resolver or redirect leads to where a project must not reach.

The port that they aim at is open on every address of this machine: what got through is counted.
"""

from dataclasses import replace
from ipaddress import ip_address
from itertools import chain, repeat

import httpcore
import httpx
import pytest

from app.alerts.connection import is_public, parse_networks
from app.alerts.guard import SsrfGuard, operator_guard
from app.errors import Blocked
from tests.alerts.guard.sentinel import sentinel
from tests.alerts.guard.spellings import SPELLINGS, TRICKS
from tests.alerts.http_receiver import Answer, receiver

ALLOWED = "127.0.0.9"  # an address of this machine that this test may reach
PUBLIC = "93.184.215.14"
TLS = httpx.create_ssl_context()  # made once: it takes longer than a request
every_spelling = pytest.mark.parametrize("spelling", SPELLINGS)


@pytest.fixture(scope="module")
def trap():
    with sentinel() as trap:
        yield trap


def lenient(host):
    """A resolver that takes every notation there is, and knows the names of this test."""
    known = {**SPELLINGS, "public.example": PUBLIC}
    return [known.get(host) or known.get(f"[{host}]") or known[host.rstrip(".")]]


def guard(resolver=lenient, *, allowed=(), **given):
    networks = parse_networks(allowed)
    return SsrfGuard(networks, True, None, resolver, total_s=5.0, connect_s=1.0, tls=TLS, **given)


def refused(guard, url):
    """Whether the guard refuses; if it does not, the request goes out."""
    try:
        guard.post(url, headers={}, body=b"{}")
    except Blocked:
        return True
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
        return False
    return False


@every_spelling
def test_written_into_the_url_it_is_refused(trap, spelling):
    assert refused(guard(), f"http://{spelling}:{trap.port}/hook")
    assert trap.num_connections() == 0


@every_spelling
def test_as_the_answer_of_a_resolver_it_is_refused(trap, spelling):
    sneaky = guard(lambda _: [SPELLINGS[spelling]])
    assert refused(sneaky, f"http://public.example:{trap.port}/hook")
    assert trap.num_connections() == 0


@every_spelling
@pytest.mark.parametrize("first", [True, False])
def test_among_good_answers_it_is_refused(trap, spelling, first):
    answers = [SPELLINGS[spelling], ALLOWED] if first else [ALLOWED, PUBLIC, SPELLINGS[spelling]]
    sneaky = guard(lambda _: answers, allowed=[f"{ALLOWED}/32"])
    assert refused(sneaky, f"http://public.example:{trap.port}/hook")
    assert trap.num_connections() == 0


@every_spelling
def test_a_name_that_changes_its_meaning_is_asked_for_once_and_then_refused(trap, spelling):
    meanings = chain([[ALLOWED]], repeat([SPELLINGS[spelling]]))
    asked = []

    def rebinding(host):
        asked.append(host)
        return next(meanings)

    dialled = []

    def dial(address, timeout_s):
        dialled.append(address)
        raise ConnectionRefusedError

    sneaky = guard(rebinding, allowed=[f"{ALLOWED}/32"], dial=dial)
    url = f"http://public.example:{trap.port}/hook"
    assert not refused(sneaky, url)
    assert asked == ["public.example"]
    assert dialled == [(ALLOWED, trap.port)]
    assert refused(sneaky, url)
    assert len(dialled) == 1
    assert trap.num_connections() == 0


@every_spelling
def test_a_redirect_to_it_is_not_followed(trap, spelling, hook):
    hook.answer = Answer(307, {"Location": _ascii(f"http://{spelling}:{trap.port}/")})
    open_here = guard(lambda _: ["127.0.0.1"], allowed=["127.0.0.0/8"])
    assert open_here.post(hook.url, headers={}, body=b"{}").status == 307
    assert trap.num_connections() == 0


@pytest.fixture(scope="module")
def hook():
    with receiver() as hook:
        yield hook


def _ascii(text):
    return text.encode("ascii", "ignore").decode()


@pytest.mark.parametrize("trick", TRICKS)
def test_a_url_that_can_be_read_in_two_ways_is_refused(trap, trick):
    # 0 connections also where it is read as the public name: nothing dials that in a test.
    def dial(address, timeout_s):
        assert is_public(ip_address(address[0])), address
        raise ConnectionRefusedError

    refused(guard(dial=dial), trick.format(port=trap.port))
    assert trap.num_connections() == 0


OTHER_SPELLINGS = ("[::1]", "localhost", "[::ffff:127.0.0.1]")


@pytest.mark.parametrize(
    "spelling",
    ["127.0.0.1", *(pytest.param(each, marks=pytest.mark.nightly) for each in OTHER_SPELLINGS)],
)
def test_the_trap_would_have_been_sprung(trap, spelling):
    # The operator's own endpoint may be anywhere: the same requests then connect.
    # It waits for an answer in vain, and so long that a busy machine has connected by then.
    impatient = replace(operator_guard(guard()), total_s=1.0)
    with pytest.raises(httpcore.ReadTimeout):
        impatient.post(f"http://{spelling}:{trap.port}/", headers={}, body=b"{}")
    assert trap.num_connections() == 1


def test_an_allowed_network_can_be_reached_and_no_other(trap, hook):
    hook.answer = Answer(204)
    port = hook.url.split(":")[2].split("/")[0]
    here = guard(lambda _: ["127.0.0.1"], allowed=["127.0.0.1/32"])
    assert here.post(f"http://inside.example:{port}/", headers={}, body=b"{}").status == 204
    assert refused(here, f"http://127.0.0.2:{trap.port}/")
    assert trap.num_connections() == 0
