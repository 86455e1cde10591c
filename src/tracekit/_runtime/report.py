"""What a recording reports at its end: what a replay will lack, and what was unusual."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .redaction import Redactor

__all__ = ["MOST", "RunReport"]

#: How many sentences are kept.
MOST: Final = 100


class RunReport:
    """What a run reports at its end: what a replay will lack, and what was unusual. There are no silent gaps."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor: Final = redactor
        #: Also issued as Python warnings.
        self.warnings: Final[list[str]] = []
        #: Uncaptured boundary crossings: a single Python warning for all, which never becomes an error.
        self.noted: list[str] = []
        #: Whether some of them may be a library's requests, which ``instrument()`` would capture.
        self.reached_out = False
        #: Whether a replay does all of them, too, but perhaps in another order.
        self.only_chance = False
        #: Probably intended, so kept in the trace alone.
        self.quiet: Final[list[str]] = []
        #: Those of either list which mean that a replay will lack something.
        self.uncaptured: Final[list[str]] = []
        #: How often each call had been made outside every run when this one began.
        self.outside_before: dict[str, int] = {}

    def warn(self, sentence: str, *, quiet: bool = False, uncaptured: bool = False) -> None:
        """Report a sentence at the run's end; ``quiet``: in the trace alone; ``uncaptured``: a replay would lack
        something."""
        sentence = self._redactor.redact_text(sentence)[0]
        into = self.quiet if quiet else self.warnings
        if sentence not in into and len(into) < MOST:
            into.append(sentence)
            if uncaptured:
                self.uncaptured.append(sentence)

    def interrupted(self) -> None:
        """A recording is not interrupted by Ctrl-C: what the program does then is recorded."""

    def note(self, sentences: Iterable[str], *, reached_out: bool, only_chance: bool) -> None:
        """Report the uncaptured boundary crossings; ``reached_out``: some of them went out to the network;
        ``only_chance``: only their order was not captured."""
        self.noted = [self._redactor.redact_text(sentence)[0] for sentence in sentences]
        self.reached_out = reached_out
        self.only_chance = only_chance
