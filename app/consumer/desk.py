"""What telling people takes, beside the store: handed in whole, so that tests hand in twins."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.alerts.cordon import Hook
from app.alerts.plan import Timing
from app.alerts.rule import Rule
from app.alerts.send import Transport
from app.store.engine import Connection, Store, now_s


@dataclass(frozen=True, slots=True)
class Desk:
    """Doors, settings and clocks of whoever plans and sends notices.

    `rules` are those of projects that have none of their own. `base_url` is the page's address,
    None where nobody has said it, and `has_pictures` whether receivers can fetch charts from there
    as pictures; `hook` is None where nothing is to be cordoned. `database_time` is the Unix time of
    all timers: of what is due, leased or silenced, many processes decide.
    """

    store: Store
    transport: Transport
    rules: Sequence[Rule]
    timing: Timing = field(default_factory=Timing)
    base_url: str | None = None
    has_pictures: bool = False
    hook: Hook | None = None
    database_time: Callable[[Connection], float] = now_s
    # Spreads retries over time; nobody gains by guessing it.
    rng: random.Random = field(default_factory=random.Random)
