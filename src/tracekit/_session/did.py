"""What a program did in one replay, read from what its witness wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from glob import glob
from hashlib import sha256
from typing import Any, Final

from orjson import JSONDecodeError, loads

from .._canonical import dumps

__all__ = ["NOTHING", "Did"]

#: The result of a run that says none, and its place.
NOTHING: Final = (b"null", "")


@dataclass
class Did:
    """What the program did in one replay: as its witness wrote it, and as the system saw its process."""

    name: str
    hash_seed: int
    status: int
    stdout: bytes
    stderr: bytes
    #: Runs that it opened, in order, by id: their files.
    runs: dict[str, str] = field(default_factory=dict)
    #: By run and ``seq``: canonical line and place.
    steps: dict[str, dict[int, tuple[bytes, str]]] = field(default_factory=dict)
    results: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    failures: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: list[tuple[int, str]] = field(default_factory=list)
    end: dict[str, Any] | None = None

    @classmethod
    def read(cls, path: str, name: str, hash_seed: int, status: int, stdout: bytes, stderr: bytes) -> Did:
        """The witness at ``path``, and those of the processes that the program started; a last line that was cut off is left out."""
        did = cls(name, hash_seed, status, stdout, stderr)
        did._read(path)
        for child in sorted(glob(f"{path}.*")):
            did._read(child, "seq", "path")
        return did

    def _read(self, path: str, *only: str) -> None:
        """Take what one process wrote; of another than the first the steps alone: its failure is the first one's as well."""
        try:
            with open(path, "rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        data, _, place = line[:-1].rpartition(b"\t")
                        about = loads(data)
                        if not only or any(key in about for key in only):
                            self._take(about, data, place.decode("utf-8", "replace"))
        except (FileNotFoundError, JSONDecodeError):
            pass  # its process never came so far, or wrote no more of it

    def _take(self, about: dict[str, Any], data: bytes, place: str) -> None:
        kind = about["kind"]
        if "seq" in about:
            self.steps.setdefault(about["run"], {})[about["seq"]] = data, place
        elif kind == "run":
            self.runs[about["run"]] = about["path"]
        elif kind == "result":
            self.results[about["run"]] = dumps(about["result"]), place
        elif kind == "failure":
            self.failures.append((about, place))
        elif kind == "report":
            self.reports[about["run"]] = about
        elif kind == "places" and about["lines"] == self.stdout.count(b"\n"):  # else others wrote there too
            self.places = [(line, where) for line, where in about["places"]]
        elif kind == "end":
            self.end = about

    @property
    def failure(self) -> tuple[dict[str, Any], str] | None:
        """What made the replay fail, and where, as it was told last: by then with what its processes had to say."""
        return self.failures[-1] if self.failures else None

    @property
    def failed(self) -> bool:
        """Whether the replay was not an exact one, by its own verdict."""
        return bool(self.failures) or self.end is None or self.end["code"] != 0

    def stream(self) -> bytes:
        """Steps, results and end, in recorded order, without places."""
        found = [line for run in self.runs for _, (line, _) in sorted(self.steps.get(run, {}).items())]
        found += [self.results.get(run, NOTHING)[0] for run in self.runs]
        found.append(dumps(self.end))
        return b"\n".join(found)

    def digest(self) -> str:
        """SHA-256 of all of it, standard output included."""
        return sha256(self.stream() + b"\n" + self.stdout).hexdigest()

    def outcome(self) -> object:
        """All of it, with what made it fail: equal where two replays did the same, right or wrong."""
        actual = self.failure[0]["actual"] if self.failure is not None else None
        return self.stream(), self.stdout, dumps(actual)

    def count(self) -> int:
        """How many steps it made."""
        return sum(map(len, self.steps.values()))

    def __str__(self) -> str:
        return f"{self.name} (hash seed {self.hash_seed})"
