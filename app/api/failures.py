"""How often one address may try a token, or a link, that is not known."""

from collections import OrderedDict, deque
from collections.abc import Callable

from app.errors import TooManyRequests


class FailureLimit:
    """Counts failures by client address; who has too many has to wait."""

    def __init__(
        self,
        now_s: Callable[[], float],
        *,
        most: int = 10,
        within_s: float = 60.0,
        of: str = "tokens",
    ) -> None:
        self._now_s = now_s
        self._most = most
        self._within_s = within_s
        self._of = of
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Returns if the address may try (again).

        Raises:
            TooManyRequests: with the time to wait.
        """
        failures = self._failures.get(address, deque())
        now_s = self._now_s()
        while failures and failures[0] <= now_s - self._within_s:
            failures.popleft()
        if len(failures) >= self._most:
            wait_s = int(failures[0] + self._within_s - now_s) + 1
            raise TooManyRequests(
                f"too many {self._of} from this address are not known: wait", retry_after_s=wait_s
            )

    def note(self, address: str) -> None:
        """Remember one failure; of very many addresses, the latest ones."""
        self._failures.setdefault(address, deque()).append(self._now_s())
        self._failures.move_to_end(address)
        while len(self._failures) > 10_000:
            self._failures.popitem(last=False)
