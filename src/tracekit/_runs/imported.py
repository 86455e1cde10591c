"""Replays of imported runs: HTTP is answered by content, and the rest of the program is live.

Such a recording has no clock reads, random numbers or tool calls, and no order between threads. So the program's steps
go into a recording of their own, which is discarded at the end; a request to a server is answered with the first unused
recorded exchange that has its method, URL and body. The guard is in force as in every replay: what is live reaches
nothing outside the process.
"""

from __future__ import annotations

import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from .. import _reality
from .._capture.http import decode
from .._journal.entry import info_of
from .._journal.store import Store
from .._policy.policies import under_policies
from .._runtime import divergence
from .._runtime.around import Around
from .._runtime.callsite import caller
from .._runtime.recorder import Recording, encode_reads
from .._runtime.replayer import Replay
from .._runtime.secrets import names_secret
from .._runtime.session import Outcome, Scope, Step
from .._runtime.step import Request, Spec
from .._values import canonical
from .._values.decoding import from_json
from ..errors import LiveCallBlockedError, ReplayError
from .ending import End, end_log

__all__ = ["ImportedReplay"]

#: The most requests that a message names.
_NAMED: Final = 5


class _Asked(NamedTuple):
    """The compared part of a request: its address without the query, its query in any order, and its body."""

    method: str
    address: str
    query: list[list[str]]
    body: Any

    @property
    def name(self) -> str:
        return f"{self.method} {self.address}"

    def facts(self, name: str) -> dict[str, Any]:
        """Return the request in the form that a difference shows: name, input and ``meta``."""
        input = {"method": self.method, "url": self.address, "query": self.query, "body": self.body}
        return {"name": name, "input": input, "meta": {}}


class ImportedReplay(Around):
    """The session of a program whose HTTP requests are answered by ``replay``, an imported run. ``guarded``: nothing
    live can be reached."""

    def __init__(self, replay: Replay, *, guarded: bool) -> None:
        self._directory: Final = tempfile.TemporaryDirectory(prefix="tracekit-")
        store = Store(self._directory.name)
        journal = store.create(replay.run_id, durability="none", encode_read=encode_reads)
        self._live: Final = Recording(journal, replay.redactor)
        tail = b',"name":%b,"input":null' % canonical(replay.trace.entry(1).get("name"))
        self._live.log.journal.append("run.started", 0, 0, tail + self._live.meta({"ordered": True}))
        super().__init__(under_policies(self._live))
        self.replay: Final = replay
        self._guarded: Final = guarded
        self._lock: Final = _reality.OwnLock()
        self._recorded: Final = [*self._exchanges()]
        source = replay.trace.imported_from
        replay.report.allow(
            "imported",
            f"the run was imported from {source}: HTTP was answered by content, and clock, random numbers and tools were live",
        )

    @property
    def recording(self) -> bool:
        return False

    @property
    def warnings(self) -> list[str]:
        return self.replay.warnings

    def close(self) -> None:
        """Discard the session when the program has ended."""
        try:
            end_log(self._live, None, lambda: End({"steps": self._live.steps}))
        finally:
            self._directory.cleanup()

    def fail(self, error: ReplayError) -> ReplayError:
        return self.replay.fail(error)

    def comes_next(self, scope: Scope, family: str, name: str) -> bool:
        return False

    def begin(self, scope: Scope, request: Request) -> Step:
        spec = request.spec
        if self.replay.state.ended:
            raise self.replay.late(spec.family, spec.name, spec.effect)
        self.replay.failed.check()
        if _is_to_a_server(request):
            return self._answered(spec, request)
        if spec.side_effect == "irreversible" and not self._guarded:
            raise self.fail(self._refused(spec))
        return super().begin(scope, request)

    def _refused(self, spec: Spec) -> LiveCallBlockedError:
        return LiveCallBlockedError(
            f"the irreversible {spec.family} {spec.name!r} would be live, and nothing guards it; it was not executed",
            run_id=self.run_id,
            location=caller(),
            operation=f"{spec.family} {spec.name}",
            next_action="in a replay of an imported run it is called only behind the guard: leave out guard='off'",
        )

    # -- exchanges ---------------------------------------------------------------------------------------------------------

    def _exchanges(self) -> Iterator[tuple[int, _Asked]]:
        replay = self.replay
        for seq in replay.index.steps:
            entry = replay.trace.entry(seq)
            if entry["type"] in ("http.request", "llm.request"):
                info = info_of(entry)
                yield seq, _asked(replay.trace.expand(entry["input"]), info)

    def _answered(self, spec: Spec, request: Request) -> ImportedStep:
        """Return the first unused exchange with this request; otherwise the replay fails."""
        replay = self.replay
        input, data = replay.comparison.input(request)
        asked = _asked(input, request.info or {})
        streamed = asked.body == {"streamed": True}
        with self._lock:
            seq = next((seq for seq, one in self._unused() if self._is(one, asked, streamed)), None)
            if seq is None:
                seq = self._nearest(spec, asked, data)
            replay.take(seq)
        return ImportedStep(self, spec, seq, streamed)

    def _unused(self) -> Iterator[tuple[int, _Asked]]:
        return ((seq, one) for seq, one in self._recorded if not self.replay.used(seq))

    def _is(self, recorded: _Asked, asked: _Asked, streamed: bool) -> bool:
        if recorded.method != asked.method or not self._equal(recorded.address, asked.address):
            return False
        return self._equal(recorded.query, asked.query) and (streamed or self._equal(recorded.body, asked.body))

    def _equal(self, recorded: Any, actual: Any) -> bool:
        return bool(recorded == actual) or self.replay.comparison.equal(recorded, actual)

    def _nearest(self, spec: Spec, asked: _Asked, data: bytes) -> int:
        """Return the exchange to use although it differs, if the caller permits that; else raise how the nearest one
        differs."""
        replay = self.replay
        name = spec.render(replay.redactor).name
        actual = asked.facts(name)
        at_address = [(seq, one) for seq, one in self._unused() if one.name == asked.name]
        for seq, one in at_address:
            if replay.divergences.are_ignored(spec.family, seq, one.facts(name), actual):
                return seq
        if not at_address:
            raise replay.fail(divergence.no_more(self.run_id, spec.family, name, self._used_up(asked)))
        candidates: list[tuple[int, Mapping[str, Any], bytes]] = [
            (seq, {}, canonical(one.facts(name)["input"])) for seq, one in at_address
        ]
        near = divergence.nearest(canonical(actual["input"]), candidates)
        seq = at_address[0][0] if near is None else near[0]
        recorded = dict(at_address)[seq].facts(name)
        harmless = spec.side_effect != "irreversible"
        left = f"\n  the nearest of {len(at_address)} unused exchange(s) with {asked.name}"
        replay.divergences.another(spec.family, seq, recorded, actual, left, harmless=harmless)
        return seq

    def _used_up(self, asked: _Asked) -> str:
        there = sum(one.name == asked.name for _, one in self._recorded)
        if there:
            return f"its {there} exchange(s) with {asked.name} are all used"
        names = [*dict.fromkeys(one.name for _, one in self._unused())]
        if not names:
            return f"it has no exchange with {asked.name}, and all others are used"
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"it has no exchange with {asked.name}; unused are {', '.join(names[:_NAMED])}{more}"

    def outcomes(self, spec: Spec, seq: int) -> Iterator[Outcome]:
        """Yield the outcome of exchange ``seq``: the pieces of its answer, and its end; or its whole answer."""
        replay = self.replay
        for one in replay.index.outcomes(seq):
            yield self._outcome(spec, seq, one)
        if not replay.index.answer[seq]:
            raise self.fail(divergence.without_outcome(replay.trace, self.run_id, seq, spec.family, spec.name))

    def _outcome(self, spec: Spec, seq: int, answer: int) -> Outcome:
        replay = self.replay
        found = replay.decoded(spec, answer)
        if "redacted" in found.meta and replay.originals.lack(replay.trace.entry(answer), "output"):
            replay.report_placeholder(seq)
        return found

    def sent(self, seq: int) -> Outcome:
        """Return the body that was sent in exchange ``seq``, as one piece."""
        entry = self.replay.trace.entry(seq)
        body = self.replay.trace.expand(entry["input"]).get("body")
        format = str(info_of(entry).get("format", "json"))
        data = b"" if body is None or format == "multipart" else decode(from_json(body), format)
        return Outcome({"sent": data}, None, {}, {"type": "http.chunk", "output": {"sent": data}})


class ImportedStep(Step):
    """A request that an imported exchange answers. ``streamed``: the program sends its body piece by piece, which is
    compared."""

    __slots__ = ("_left", "_session", "seq", "spec")

    live: Final = False
    deferred: Final = False

    def __init__(self, session: ImportedReplay, spec: Spec, seq: int, streamed: bool) -> None:
        self._session: Final = session
        self.spec: Final = spec
        self.seq: Final = seq
        #: The pieces that were not delivered yet, ending with the end of the answer.
        self._left: Final = deque(session.outcomes(spec, seq))
        if streamed:
            self._left.appendleft(session.sent(seq))

    def answer(self) -> Outcome:
        found = self._left.pop()
        self._left.clear()
        return found

    async def answer_async(self) -> Outcome:
        return self.answer()

    def next_chunk(self) -> Outcome | None:
        return self._left.popleft() if len(self._left) > 1 else None

    async def next_chunk_async(self) -> Outcome | None:
        return self.next_chunk()

    def upcoming(self) -> Mapping[str, Any] | None:
        return self._left[0].entry if self._left else None

    def comes_in_pieces(self) -> bool:
        return len(self._left) > 1

    def rest(self) -> Iterator[Outcome]:
        return iter(tuple(self._left))

    def on_next(self, then: Callable[[Outcome], object]) -> Callable[[], object]:
        from asyncio import get_running_loop

        return get_running_loop().call_soon(lambda: then(self.take_next())).cancel

    def take_next(self) -> Outcome:
        return self._left.popleft()

    def alike(self, recorded: object, actual: object) -> bool:
        return self._session.replay.comparison.alike(recorded, actual)

    def ahead(self, key: str) -> str | None:
        return None


def _is_to_a_server(request: Request) -> bool:
    """Return whether it is a request over HTTP of any kind; a model behind a plain function is none."""
    return request.spec.family in ("http", "llm") and isinstance(request.input, Mapping) and "url" in request.input


def _asked(input: Mapping[str, Any], info: Mapping[str, Any]) -> _Asked:
    """Return a request in the compared form. A model call has its origin separately; credentials in the query are left
    out."""
    url = str(input.get("url"))
    parts = urlsplit(url if "://" in url else f"{info.get('origin', '')}{url}")
    query = sorted([k, v] for k, v in parse_qsl(parts.query, keep_blank_values=True) if not names_secret(k))
    host = parts.netloc.lower().removesuffix({"http": ":80", "https": ":443"}.get(parts.scheme, ":"))
    path = (
        unquote(re.sub("%(?=2[fF])", "%25", parts.path)) or "/"
    )  # libraries differ in what they escape; an escaped slash, however, is significant
    return _Asked(str(input.get("method")), f"{parts.scheme}://{host}{path}", query, input.get("body"))
