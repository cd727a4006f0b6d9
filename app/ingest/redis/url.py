"""Where the event queue is: one server, a cluster, or a primary that sentinels know."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from app.errors import StartUpFailed

NodeAddress = tuple[str, int]  # host, port

_PORTS = {"cluster": 6379, "sentinel": 26379}
_ONE_SERVER = {"redis", "rediss", "unix"}


@dataclass(frozen=True, slots=True)
class QueueUrl:
    """A URL taken apart; credentials are in `url` and the options, which are never shown.

    redis://, rediss://, unix://                            one server, `url`
    redis+cluster://HOST:PORT[,HOST:PORT]                   some nodes of a cluster
    redis+sentinel://HOST:PORT[,HOST:PORT]/SERVICE[/DB]     some sentinels, and a primary's name

    With rediss+ in front the last two use TLS. `?ssl_ca_certs=FILE` (and other `ssl_` options of
    redis-py) configure trust; `?sentinel_username=...&sentinel_password=...&sentinel_ssl=true`
    are for the sentinels themselves.
    """

    kind: Literal["single", "cluster", "sentinel"]
    url: str = field(repr=False)
    addresses: tuple[NodeAddress, ...] = ()
    service: str = ""
    options: Mapping[str, str | int] = field(default_factory=dict, repr=False)
    sentinel_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def of_node(self, address: NodeAddress) -> "QueueUrl":
        """The same for one node of the cluster, with the cluster's credentials."""
        host, port = address
        parts = (str(self.options.get(name, "")) for name in ("username", "password"))
        credentials = ":".join(quote(text, safe="") for text in parts)
        scheme = "rediss" if "ssl" in self.options else "redis"
        at = f"{credentials}@" if credentials != ":" else ""
        tls = urlencode({k: v for k, v in self.options.items() if k.startswith("ssl_")})
        query = f"?{tls}" if tls else ""
        shown = f"[{host}]" if ":" in host else host
        return QueueUrl("single", f"{scheme}://{at}{shown}:{port}{query}")


def parse_queue_url(url: str) -> QueueUrl:
    """The URL's parts.

    Raises:
        StartUpFailed: it cannot be used; the message leaves the URL out, for its password.
    """
    try:
        return _parsed(url)
    except ValueError:
        raise unusable_url_error() from None


def unusable_url_error() -> StartUpFailed:
    """The error of an unusable URL: it shows the usable forms, as the URL may hold a password."""
    return StartUpFailed(
        "PACELINE_REDIS_URL cannot be used: want redis://HOST:PORT, rediss://HOST:PORT, "
        "unix:///PATH, redis+cluster://HOST:PORT,HOST:PORT or "
        "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE"
    )


def _parsed(url: str) -> QueueUrl:
    parts = urlsplit(url)
    base, _, kind = parts.scheme.partition("+")
    if not kind and base in _ONE_SERVER:
        _ = parts.port  # raises when it is no number
        return QueueUrl("single", url)
    if base not in ("redis", "rediss") or kind not in _PORTS:
        raise ValueError("scheme")
    credentials, _, hosts = parts.netloc.rpartition("@")
    query = parse_qsl(parts.query)
    tls: dict[str, str | int] = {"ssl": True} if base == "rediss" else {}
    tls |= {name: value for name, value in query if name.startswith("ssl_") and tls}
    options = {**_credentials(credentials), **tls}
    addresses = tuple(_address(host, _PORTS[kind]) for host in hosts.split(",") if host)
    if not addresses:
        raise ValueError("no host")
    if kind == "cluster":
        return QueueUrl("cluster", url, addresses, options=options)
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("no service")
    others = ((name, value) for name, value in query if not name.startswith("ssl_"))
    sentinel_options = {name.removeprefix("sentinel_"): value for name, value in others}
    options["db"] = int(db or 0)
    return QueueUrl("sentinel", url, addresses, service, options, sentinel_options)


def _credentials(text: str) -> dict[str, str]:
    username, _, password = text.partition(":")
    credentials = {"username": unquote(username), "password": unquote(password)}
    return {name: value for name, value in credentials.items() if value}


def _address(text: str, port: int) -> NodeAddress:
    host, colon, number = text.rpartition(":")
    if not colon or text.endswith("]"):  # no port; brackets hold an IPv6 address
        host, number = text, str(port)
    return host.strip("[]"), int(number)
