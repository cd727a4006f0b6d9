"""Files of scores, opened as the registry wants them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from app.trace.collectives import Collectives
from app.trace.readers.foreign import DescribedScores, Options
from app.trace.readers.score_text import FileText, Text
from app.trace.scores import Score, ScoreReport

Read = Callable[[Sequence[Text]], ScoreReport]


class ScoreFiles:
    """Reads its files when it is first asked; what is kept of them is bounded, so in memory."""

    def __init__(self, paths: Sequence[Path], options: Options, read: Read) -> None:
        self._texts = [FileText(path) for path in paths]
        self._name = options.name
        self._read = read
        self._report: ScoreReport | None = None

    def report(self) -> ScoreReport:
        """All that the files say.

        Raises:
            InvalidTrace: a file cannot be read, or is not what it should be.
        """
        if self._report is None:
            self._report = self._read(self._texts)
        return self._report

    def describe(self) -> DescribedScores:
        """What is in the files, in bounded memory."""
        report = self.report()
        return DescribedScores(
            self._name,
            len(report.scores),
            report.lacks,
            source=report.source,
            num_reports=report.num_reports,
        )

    def scores(self) -> Iterator[Score]:
        """The scores, the worst first: that is the order in which they are of use."""
        return iter(self.report().scores)

    def collectives(self) -> Collectives | None:
        """The collectives behind the scores, where the files have them one by one."""
        return self.report().collectives

    def close(self) -> None:
        """Nothing is kept on disk."""
