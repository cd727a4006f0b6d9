"""Random faults: each is injected once, and heals by itself or soon after."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tests.harness.proxy import Proxy
from tests.harness.stack import Stack

# Shares of all faults; the rest are kill -9 of a random process.
_SHARES = {
    "power_off": 0.04,
    "kill_backend": 0.04,
    "freeze": 0.06,
    "reset_lines": 0.04,
    "half_close": 0.02,
    "drop_answer": 0.04,
    "silence": 0.02,
    "slow": 0.02,
    "terminate": 0.02,
}


class RandomFault(NamedTuple):
    """One fault of a schedule; the same seed draws the same schedule."""

    name: str
    where: float  # 0 to 1: which process or proxy
    how_long: float  # 0 to 1
    pause_s: float  # before it

    def as_json(self) -> list[str | float]:
        """The fault as the verdict prints it."""
        return [self.name, *(round(value, 3) for value in self[1:])]


def random_faults(seed: int) -> Iterator[RandomFault]:
    """An endless schedule of faults."""
    rng = np.random.default_rng(seed)
    names = ["kill", *_SHARES]
    shares = [1 - sum(_SHARES.values()), *_SHARES.values()]
    while True:
        where, how_long, pause_s = rng.random(3).tolist()
        yield RandomFault(str(rng.choice(names, p=shares)), where, how_long, pause_s)


def inject(stack: Stack, drawn: RandomFault) -> int:
    """Inject the fault; returns the number of killed processes."""
    fault: Callable[[Stack, RandomFault], int] = _FAULTS[drawn.name]
    return fault(stack, drawn)


def _kill(stack: Stack, drawn: RandomFault) -> int:
    name = _pick(list(stack.processes), drawn)
    stack.kill(name)
    time.sleep(drawn.how_long)
    stack.start(name)
    return 1


def _power_off(stack: Stack, drawn: RandomFault) -> int:
    names = list(stack.processes)
    stack.kill(*names)
    order = np.random.default_rng(int(drawn.how_long * 1e9)).permutation(len(names))
    for index in order.tolist():
        stack.start(names[index])
    return len(names)


def _kill_backend(stack: Stack, drawn: RandomFault) -> int:
    if stack.database is None:
        return _kill(stack, drawn)
    return int(stack.database.kill_backend())


def _freeze(stack: Stack, drawn: RandomFault) -> int:
    server = stack.processes[_pick(list(stack.processes), drawn)]
    server.freeze()
    time.sleep(4 * drawn.how_long)  # longer than a lease, or not
    server.thaw()
    return 0


def _reset_connections(stack: Stack, drawn: RandomFault) -> int:
    _proxy(stack, drawn).reset_all()
    return 0


def _half_close(stack: Stack, drawn: RandomFault) -> int:
    _proxy(stack, drawn).half_close_all()
    return 0


def _drop_answer(stack: Stack, drawn: RandomFault) -> int:
    targets = [
        (stack.to_queue, b"XADD"),
        (stack.to_apis[0], b"/ops"),
        (stack.from_queue, b"EVALSHA"),
    ]
    if stack.to_database:
        targets.append((stack.to_database, b"COMMIT"))
    proxy, match = targets[int(drawn.where * len(targets))]
    proxy.drop_answer_to(match)
    return 0


def _blackhole(stack: Stack, drawn: RandomFault) -> int:
    proxy = _proxy(stack, drawn)
    proxy.blackhole()
    time.sleep(3 * drawn.how_long)
    proxy.heal()
    return 0


def _slow(stack: Stack, drawn: RandomFault) -> int:
    proxy = _proxy(stack, drawn)
    proxy.slow(0.05, bytes_per_s=2e6)
    time.sleep(3 * drawn.how_long)
    proxy.heal()
    return 0


def _terminate(stack: Stack, drawn: RandomFault) -> int:
    name = _pick([*stack.apis, *stack.consumers], drawn)
    stack.processes[name].terminate()
    stack.start(name)
    return 0


def _pick(names: list[str], drawn: RandomFault) -> str:
    return names[int(drawn.where * len(names))]


def _proxy(stack: Stack, drawn: RandomFault) -> Proxy:
    return stack.proxies[int(drawn.where * len(stack.proxies))]


_FAULTS: dict[str, Callable[[Stack, RandomFault], int]] = {
    "kill": _kill,
    "power_off": _power_off,
    "kill_backend": _kill_backend,
    "freeze": _freeze,
    "reset_lines": _reset_connections,
    "half_close": _half_close,
    "drop_answer": _drop_answer,
    "silence": _blackhole,
    "slow": _slow,
    "terminate": _terminate,
}
