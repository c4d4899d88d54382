"""The numbers that runs have in a file: the rows of `runs`, and those of them that one writer knows."""

from __future__ import annotations

from ..sqlite.database import Statements
from .projection import RunSpan

_KNOWN_RUNS = 256


class RunNumbers:
    """What a writer remembers of the runs that it writes, so that most batches need not look.

    A number is remembered only when the transaction that gave it is committed: otherwise it would be nobody's.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def remember(self, numbers: dict[str, int]) -> None:
        """Numbers that are committed."""
        if len(self._known) + len(numbers) > _KNOWN_RUNS:
            self._known.clear()
        self._known.update(numbers)

    def forget(self) -> None:
        """Another file, or rows of runs may have gone or been marked as ended: look again."""
        self._known.clear()

    def note(self, statements: Statements, run: RunSpan) -> int:
        """Write down how far a run has got, and return its number. In a transaction."""
        known = self._known.get(run.run_id)
        if known is not None:
            statements.run(
                """
                UPDATE runs
                   SET first_us = min(first_us, ?),
                       last_us = max(last_us, ?),
                       committed_seq = max(committed_seq, ?)
                 WHERE id = ?
                """,
                (run.first_us, run.last_us, run.seq, known),
            )
            return known
        statements.run(
            """
            INSERT INTO runs (run_id, first_us, last_us, committed_seq)
            VALUES (?, ?, ?, ?)
            ON CONFLICT (run_id) DO UPDATE SET
                first_us = min(first_us, excluded.first_us),
                last_us = max(last_us, excluded.last_us),
                committed_seq = max(committed_seq, excluded.committed_seq),
                ended_us = NULL,
                ending = NULL
            """,
            (run.run_id, run.first_us, run.last_us, run.seq),
        )
        ((number,),) = statements.run("SELECT id FROM runs WHERE run_id = ?", (run.run_id,))
        return int(number)
