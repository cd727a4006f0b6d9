"""The notify context, built from settings."""

import random
from collections.abc import Sequence

from app.alerts.planning.plan import NotificationTiming
from app.alerts.rule import Rule
from app.charts.report.png import is_png_available
from app.consumer.context import NotifyContext
from app.settings import Settings
from app.store.database import Store


def notify_context(settings: Settings, store: Store, rules: Sequence[Rule]) -> NotifyContext:
    """Dependencies of dispatcher and sender.

    Raises:
        StartUpFailed: a setting cannot be used.
    """
    return NotifyContext(
        store=store,
        transport=settings.transport(),
        default_rules=rules,
        timing=NotificationTiming(
            interval_s=settings.alert_group_interval_s,
            repeat_s=settings.alert_repeat_h * 3600.0,
            damping_s=settings.alert_damping_s,
        ),
        base_url=settings.public_url,
        has_pictures=has_pictures(settings),
        hook=settings.cordon_hook(),
        num_shards=settings.shards,
        rng=random.Random(),  # noqa: S311 - spreads retries; need not be secret
    )


def has_pictures(settings: Settings) -> bool:
    """Whether messages show charts: receivers fetch them by https only."""
    is_public = (settings.public_url or "").lower().startswith("https://")
    return is_public and is_png_available()
