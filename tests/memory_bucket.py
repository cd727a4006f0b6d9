"""A bucket in memory, for tests of what is done with objects."""

from collections.abc import Sequence

from app.errors import ObjectStorageUnavailable


class MemoryBucket:
    """Objects by name; while `is_away` it answers as a storage does that cannot be reached."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.is_away = False

    def put(self, name: str, data: bytes) -> None:
        """Store an object, over one of the same name."""
        self._answer()
        self.objects[name] = data

    def get(self, name: str) -> bytes | None:
        """The object; None if there is none of this name."""
        self._answer()
        return self.objects.get(name)

    def delete(self, names: Sequence[str]) -> None:
        """Delete those of the objects that are there."""
        self._answer()
        for name in names:
            self.objects.pop(name, None)

    def _answer(self) -> None:
        if self.is_away:
            raise ObjectStorageUnavailable("away")
