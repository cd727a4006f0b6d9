"""Which global rank a process has, as far as communicators tell."""

from app.trace.readers.nccl_lines import Process

# More processes than any job has; a file could make them up.
MAX_PROCESSES = 1 << 20


class Worlds:
    """Processes and their ranks in the largest communicator: that of all, if each is in it."""

    def __init__(self) -> None:
        self._largest: tuple[int, str] = (0, "")
        self._ranks: dict[Process, int] = {}
        self._processes: set[Process] = set()

    def see(self, process: Process, comm: str, rank: int, num_ranks: int) -> None:
        """A process has this rank in this communicator."""
        if len(self._processes) < MAX_PROCESSES:
            self._processes.add(process)
        if num_ranks > self._largest[0]:
            self._largest = (num_ranks, comm)
            self._ranks = {}
        if comm == self._largest[1] and len(self._ranks) < MAX_PROCESSES:
            self._ranks.setdefault(process, rank)

    @property
    def num_processes(self) -> int:
        """How many there are."""
        return len(self._processes)

    @property
    def largest(self) -> str:
        """The largest communicator, in words."""
        num_ranks, comm = self._largest
        return f"the largest communicator ({comm}, {num_ranks:,} ranks)"

    def ranks(self) -> dict[Process, int] | None:
        """Each process's rank in the job; None where no communicator has them all."""
        numbers = self._ranks.values()
        is_one = self._ranks.keys() == self._processes and len({*numbers}) == len(numbers)
        return dict(self._ranks) if is_one else None
