"""Who tells people of alerts, and by what: put together from settings."""

import random
import shlex
from collections.abc import Sequence

from app.alerts.cordon import Hook
from app.alerts.endpoint import OF_SETTINGS, Endpoint
from app.alerts.plan import Timing
from app.alerts.rule import Rule
from app.alerts.send import Transport, make_transport
from app.alerts.usable import refuse_unusable
from app.charts.picture import is_installed
from app.consumer.desk import Desk
from app.errors import InvalidRequest, StartUpFailed
from app.settings import Settings
from app.store.engine import Store


def settings_endpoint(settings: Settings) -> Endpoint | None:
    """The endpoint of the environment, which is every project's; None where it names none.

    Raises:
        StartUpFailed: it names one that cannot be used.
    """
    if settings.webhook_url is None:
        return None
    if settings.webhook_secret is None:
        raise StartUpFailed("alerts are signed: set PACELINE_WEBHOOK_SECRET to a whsec_... too")
    secrets = (settings.webhook_secret.get_secret_value(),)
    url = settings.webhook_url
    endpoint = Endpoint(OF_SETTINGS, None, OF_SETTINGS, "standard", url, secrets)
    try:
        refuse_unusable(endpoint, transport(settings).guard_for(endpoint))
    except InvalidRequest as error:
        raise StartUpFailed(f"PACELINE_WEBHOOK_URL and _SECRET: {error}") from error
    return endpoint


def transport(settings: Settings) -> Transport:
    """The ways out.

    Raises:
        StartUpFailed: the mail server cannot be used as it is set up.
    """
    return make_transport(
        allowed=settings.webhook_allow,
        allows_http=settings.webhook_allow_http,
        ports=frozenset(settings.webhook_ports),
        mail=settings.mail_server(),
    )


def hook(settings: Settings) -> Hook | None:
    """What rules with a cordon call; None where nothing is to be called.

    Raises:
        StartUpFailed: the environment names two things to call, or one that is none; or it means
            it, and does not say whose rules may ask and for what.
    """
    command, url = settings.cordon_command, settings.cordon_url
    if command is not None and url is not None:
        raise StartUpFailed("set PACELINE_CORDON_COMMAND or PACELINE_CORDON_URL, not both")
    if command is None and url is None:
        return None
    projects, actions = settings.cordon_projects, settings.cordon_actions
    if not settings.cordon_dry_run and not (projects and actions):
        raise StartUpFailed(
            "cordons are meant, and nobody may ask for any: "
            "set PACELINE_CORDON_PROJECTS and PACELINE_CORDON_ACTIONS"
        )
    return Hook(_words(command), url, settings.cordon_dry_run, projects, actions)


def desk(settings: Settings, store: Store, rules: Sequence[Rule]) -> Desk:
    """What dispatcher and sender work with.

    Raises:
        StartUpFailed: something cannot be used as it is set up.
    """
    return Desk(
        store=store,
        transport=transport(settings),
        rules=rules,
        timing=Timing(
            wait_s=settings.alert_group_wait_s,
            interval_s=settings.alert_group_interval_s,
            repeat_s=settings.alert_repeat_h * 3600.0,
            damping_s=settings.alert_damping_s,
        ),
        base_url=settings.public_url,
        has_pictures=has_pictures(settings),
        hook=hook(settings),
        rng=random.Random(),  # noqa: S311 - spreads retries; nobody gains by guessing it
    )


def has_pictures(settings: Settings) -> bool:
    """Whether messages show charts: receivers fetch them by https:// or not at all."""
    is_public = (settings.public_url or "").lower().startswith("https://")
    return is_public and is_installed()


def _words(command: str | None) -> Sequence[str]:
    if command is None:
        return ()
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise StartUpFailed(f"PACELINE_CORDON_COMMAND: {error}") from None
    if not words:
        raise StartUpFailed("PACELINE_CORDON_COMMAND names no command")
    return words
