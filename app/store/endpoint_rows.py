"""An endpoint as a row of its table, and how long its texts may be."""

from dataclasses import fields
from typing import Any

from app.alerts.endpoint import Endpoint
from app.errors import InvalidRequest
from app.store.alert_json import matchers_json, matchers_of
from app.store.alert_tables import endpoints
from app.store.matcher_limits import check_matchers
from app.store.texts import checked

MAX_NAME = 100
MAX_URL = 2048
MAX_SECRETS = 2  # the old one goes on while receivers learn the new one
MAX_SECRET = 512
MAX_HEADERS = 16
MAX_HEADER = 1024

_SECRET = ("secrets", "headers")
# All that is no secret.
COLUMNS = tuple(endpoints.c[each.name] for each in fields(Endpoint) if each.name not in _SECRET)


def row_of(endpoint: Endpoint) -> dict[str, Any]:
    """The row without how the endpoint fares.

    Raises:
        InvalidRequest: it has longer texts, or more of something, than it may.
    """
    _check(endpoint)
    values = {column.name: getattr(endpoint, column.name) for column in COLUMNS}
    secrets = {"secrets": list(endpoint.secrets), "headers": dict(endpoint.headers)}
    return values | {"matchers": matchers_json(endpoint.matchers), "secrets": secrets}


def _check(endpoint: Endpoint) -> None:
    check_matchers(endpoint.matchers)
    checked("name", endpoint.name, MAX_NAME)
    checked("url", endpoint.url, MAX_URL)
    if len(endpoint.secrets) > MAX_SECRETS or len(endpoint.headers) > MAX_HEADERS:
        most = f"{MAX_SECRETS} secrets and {MAX_HEADERS} headers"
        raise InvalidRequest(f"an endpoint has at most {most}")
    for secret in endpoint.secrets:
        checked("secret", secret, MAX_SECRET)
    for pair in endpoint.headers.items():
        for each in pair:
            checked("header", each, MAX_HEADER)


def endpoint_of(row: Any) -> Endpoint:
    """The endpoint of a row of `COLUMNS`, with its secrets where the row has them."""
    values = dict(row._mapping)
    values["matchers"] = matchers_of(values["matchers"])
    secret = values.pop("secrets", None)
    if secret is not None:
        values |= {"secrets": tuple(secret["secrets"]), "headers": secret["headers"]}
    return Endpoint(**values)
