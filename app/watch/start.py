"""Starts watching in an API process: one thread that watches, one for the canary."""

import ssl
import threading
from pathlib import Path

from app.addresses import listens_on_all
from app.api.service.service import Service
from app.consumer.context import NotifyContext
from app.settings import Settings
from app.watch.canary import Canary, CanaryAddress
from app.watch.service_watch import ServiceWatch, WatchLimits


def start_watching(service: Service, settings: Settings, stop: threading.Event) -> None:
    """Watch consumers and canary, and do rounds of the canary, until `stop` is set.

    Raises:
        StartUpFailed: the mail server cannot be used as it is set up.
    """
    context = NotifyContext(
        service.store,
        settings.transport(),
        default_rules=(),  # the service itself has no rules
        base_url=settings.public_url,
        num_shards=settings.shards,
        database_time=service.database_time,
    )
    has_canary = settings.canary_every_s > 0
    limits = WatchLimits(
        settings.consumers_dead_after_s or None,
        settings.canary_missing_after_s if has_canary else None,
    )
    watch = ServiceWatch(
        context, limits, is_migrated=service.is_migrated, refused=service.refused_jobs
    )
    # Daemons: neither an attempt nor a round delays the end of the process.
    threading.Thread(target=watch.run, args=(stop,), name="watch", daemon=True).start()
    if has_canary:
        canary = Canary(
            service.store,
            canary_address(settings, service.auth.canary_token),
            every_s=settings.canary_every_s,
            num_shards=settings.shards,
            is_migrated=service.is_migrated,
            database_time=service.database_time,
        )
        threading.Thread(target=canary.run, args=(stop,), name="canary", daemon=True).start()


def canary_address(settings: Settings, token: str) -> CanaryAddress:
    """Where this process answers itself, with its own certificate."""
    host = settings.host
    if listens_on_all(host):
        host = "::1" if host == "::" else "127.0.0.1"
    tls = None if settings.tls_cert is None else _trust_only(settings.tls_cert)
    return CanaryAddress(settings.url_at(host), token, tls)


def _trust_only(certificate: Path) -> ssl.SSLContext:
    """A context that trusts this certificate, for any name: the connection is to this process."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
