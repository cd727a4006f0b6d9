"""The notify context, built from settings."""

import random
import shlex
from collections.abc import Sequence

from app.alerts.cordon import CordonHook
from app.alerts.planning.plan import NotificationTiming
from app.alerts.receiver import SETTINGS_RECEIVER_ID, Receiver
from app.alerts.rule import Rule
from app.alerts.sending import Transport, make_transport, refuse_unusable_receiver
from app.charts.report.png import is_png_available
from app.consumer.context import NotifyContext
from app.errors import InvalidRequest, StartUpFailed
from app.settings import Settings
from app.store.database import Store


def settings_receiver(settings: Settings) -> Receiver | None:
    """The receiver of the settings, which all projects share; None if not set.

    Raises:
        StartUpFailed: it cannot be used.
    """
    if settings.webhook_url is None:
        return None
    if settings.webhook_secret is None:
        raise StartUpFailed("alerts are signed: set PACELINE_WEBHOOK_SECRET to a whsec_... too")
    secrets = (settings.webhook_secret.get_secret_value(),)
    url = settings.webhook_url
    receiver = Receiver(SETTINGS_RECEIVER_ID, None, SETTINGS_RECEIVER_ID, "standard", url, secrets)
    try:
        refuse_unusable_receiver(receiver, notify_transport(settings).guard_for(receiver))
    except InvalidRequest as error:
        raise StartUpFailed(f"PACELINE_WEBHOOK_URL and _SECRET: {error}") from error
    return receiver


def notify_transport(settings: Settings) -> Transport:
    """How messages are sent.

    Raises:
        StartUpFailed: the mail server cannot be used as it is set up.
    """
    return make_transport(
        allowed=settings.webhook_allow,
        allows_http=settings.webhook_allow_http,
        ports=frozenset(settings.webhook_ports),
        mail=settings.mail_server(),
    )


def cordon_hook(settings: Settings) -> CordonHook | None:
    """The hook that rules with a cordon call; None if not set.

    Raises:
        StartUpFailed: a command and a URL are set, or the command is invalid; or it is no dry run,
            and projects or actions are not set.
    """
    command, url = settings.cordon_command, settings.cordon_url
    if command is not None and url is not None:
        raise StartUpFailed("set PACELINE_CORDON_COMMAND or PACELINE_CORDON_URL, not both")
    if command is None and url is None:
        return None
    projects, actions = settings.cordon_projects, settings.cordon_actions
    if not settings.cordon_dry_run and not (projects and actions):
        raise StartUpFailed(
            "cordons are enabled, but not allowed for any project or action: "
            "set PACELINE_CORDON_PROJECTS and PACELINE_CORDON_ACTIONS"
        )
    return CordonHook(_command_words(command), url, settings.cordon_dry_run, projects, actions)


def notify_context(settings: Settings, store: Store, rules: Sequence[Rule]) -> NotifyContext:
    """Dependencies of dispatcher and sender.

    Raises:
        StartUpFailed: a setting cannot be used.
    """
    return NotifyContext(
        store=store,
        transport=notify_transport(settings),
        default_rules=rules,
        timing=NotificationTiming(
            interval_s=settings.alert_group_interval_s,
            repeat_s=settings.alert_repeat_h * 3600.0,
            damping_s=settings.alert_damping_s,
        ),
        base_url=settings.public_url,
        has_pictures=has_pictures(settings),
        hook=cordon_hook(settings),
        rng=random.Random(),  # noqa: S311 - spreads retries; need not be secret
    )


def has_pictures(settings: Settings) -> bool:
    """Whether messages show charts: receivers fetch them by https only."""
    is_public = (settings.public_url or "").lower().startswith("https://")
    return is_public and is_png_available()


def _command_words(command: str | None) -> Sequence[str]:
    if command is None:
        return ()
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise StartUpFailed(f"PACELINE_CORDON_COMMAND: {error}") from None
    if not words:
        raise StartUpFailed("PACELINE_CORDON_COMMAND names no command")
    return words
