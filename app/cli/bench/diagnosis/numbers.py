"""A made job's number says all of it: the run's seed, the family, and which one it is.

    number = seed * 1,000,000 + group * 100,000 + index

so that each job can be made again alone, whatever run it came from.
"""

from dataclasses import dataclass

from app.errors import InvalidRequest

_A_GROUP = 100_000
_A_SEED = 1_000_000
_GROUPS = (("tune", False), ("tune", True), ("held-out", False), ("held-out", True))


@dataclass(frozen=True, slots=True)
class Numbered:
    """The `index`-th faulty or healthy job of a family, for a seed."""

    seed: int
    family: str
    is_healthy: bool
    index: int

    @property
    def number(self) -> int:
        """What it is called by."""
        group = _GROUPS.index((self.family, self.is_healthy))
        return self.seed * _A_SEED + group * _A_GROUP + self.index

    @classmethod
    def of(cls, number: int) -> "Numbered":
        """The job of this number.

        Raises:
            InvalidRequest: there is none.
        """
        seed, rest = divmod(number, _A_SEED)
        group, index = divmod(rest, _A_GROUP)
        if number < 0 or group >= len(_GROUPS):
            raise InvalidRequest(f"no job has the number {number}: take one from the misses")
        return cls(seed, *_GROUPS[group], index)


def numbered(seed: int, family: str, num_faulty: int, num_healthy: int) -> list[Numbered]:
    """So many jobs; of `all` families, every third one is of the held-out one.

    Raises:
        InvalidRequest: more than a seed has numbers for.
    """
    if max(num_faulty, num_healthy) > _A_GROUP:
        raise InvalidRequest(f"a seed has at most {_A_GROUP:,} jobs: use several seeds")
    return [
        Numbered(seed, name, is_healthy, index)
        for is_healthy, count in ((False, num_faulty), (True, num_healthy))
        for name, index in _shared_out(family, count)
    ]


def _shared_out(family: str, count: int) -> list[tuple[str, int]]:
    """Family and position in it; each family's are its first so many."""
    if family != "all":
        return [(family, index) for index in range(count)]
    thirds = (divmod(each, 3) for each in range(count))
    return [
        ("held-out", third) if part == 2 else ("tune", 2 * third + part) for third, part in thirds
    ]
