"""Interning: what comes again is written once, and comes back whole."""

from __future__ import annotations

import copy
import random
import string
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import examples
from tests.support.plain_writer import entry, write
from tracekit._journal.intern import Interner, Places
from tracekit._journal.reader import Limits
from tracekit.errors import TraceIntegrityError
from tracekit.integration import Trace


class Log:
    """A trace made of blobs and of entries that hold interned values."""

    def __init__(self) -> None:
        self.entries = [entry("run.started", name="x")]
        self.interner = Interner(self.blob)
        self.blobs = 0

    def blob(self, data: bytes) -> int:
        self.blobs += 1
        self.entries.append(entry("blob", output=orjson.loads(data)))
        return len(self.entries)

    def put(self, tree: Any, *, lists: bool = True) -> int:
        places: Places | None = [] if lists else None
        self.entries.append(
            entry("llm.request", name="m", input=self.interner.intern(tree, lists=lists, places=places))
        )
        self.interner.remember(places or [], len(self.entries))
        return len(self.entries)

    def trace(self, path: Path, **limits: int) -> Trace:
        return Trace(write(path / "a.jsonl", self.entries), Limits(**limits))


def _text(seed: int, length: int = 1000) -> str:
    return "".join(random.Random(seed).choices(string.ascii_letters + " ", k=length))


def _read(trace: Trace, seq: int) -> Any:
    return trace.expand(trace.entry(seq)["input"], before=seq)


def test_small_values_are_left_alone() -> None:
    """Where nothing is large the very same tree comes back, and no blob is written."""
    log = Log()
    for tree in ({"a": [1, 2, {"b": "c"}]}, "x" * 900, [1] * 5000, None, 1.5, ["a", "b"], {"m": [[1.0] * 3] * 900}):
        assert log.interner.intern(tree, lists=False) is tree
    for tree in ({"a": {"b": "c" * 300}}, "x" * 900, [1] * 5000, {"m": ["short"]}):
        assert log.interner.intern(tree, lists=True) is tree
    assert log.blobs == 0


def test_short_lists_stay_where_they_are(tmp_path: Path) -> None:
    """The pieces of a stream are no blobs each: a short list that extends none is left in place, what it repeats referred to."""
    log = Log()
    for i in range(20):
        piece = {"choices": [{"index": 0, "delta": {"content": _text(i, 20)}, "finish_reason": None, "logprobs": None}]}
        assert log.interner.intern(piece, lists=True) is piece
    assert log.blobs == 0
    long = {"messages": [{"role": "user", "content": _text(1, 300)}, {"role": "user", "content": _text(2, 300)}]}
    again = {"choices": [{"content": _text(1, 300)}]}
    seqs = [log.put(long), log.put(again)]
    assert log.blobs == 0
    assert log.entries[-1]["input"] == {
        "choices": [{"content": {"$ref": 2, "at": ["input", "messages", 0, "content"]}}]
    }
    with log.trace(tmp_path) as trace:
        assert [_read(trace, seq) for seq in seqs] == [long, again]


def test_a_large_string_is_written_once(tmp_path: Path) -> None:
    """Any string of 1 KiB or more, base64 and non-ASCII text included, stands once in the file and comes back whole."""
    log = Log()
    big, wide = _text(1, 1024), "ü" * 512
    first = log.put({"a": big, "b": {"$t": "bytes", "v": big}, "c": wide}, lists=False)
    second = log.put([wide, [big], "small"], lists=False)
    assert log.blobs == 2
    with log.trace(tmp_path) as trace:
        assert _read(trace, first) == {"a": big, "b": {"$t": "bytes", "v": big}, "c": wide}
        assert _read(trace, second) == [wide, [big], "small"]


def test_a_prompt_that_shares_nothing_costs_no_entry(tmp_path: Path) -> None:
    """A prompt that comes once stands in its request; when it grows, its text is not written again."""
    log, first = Log(), {"messages": [{"role": "user", "content": _text(1, 10_000)}]}
    second = {"messages": [*first["messages"], {"role": "user", "content": "and now?"}]}
    seqs = [log.put(first)]
    assert log.blobs == 0
    assert log.entries[-1]["input"] == first
    seqs += [log.put(second), log.put(first)]
    with log.trace(tmp_path) as trace:
        assert [_read(trace, seq) for seq in seqs] == [first, second, first]
        assert trace.check().size < 10_000 + 3000


def test_an_answer_that_is_sent_back_is_referred_to_where_it_came_in(tmp_path: Path) -> None:
    """The text of an answer stands in its own entry; the request that sends it back refers to it there."""
    log, answer = Log(), {"message": {"role": "assistant", "content": _text(1, 600)}}
    places: Places = []
    interned = log.interner.intern(answer, places=places, at="output")
    assert interned is answer
    log.entries.append(entry("llm.response", step=1, output=interned))
    log.interner.remember(places, 2)
    request = {"messages": [{"role": "user", "content": _text(2, 600)}, answer["message"]]}
    seq = log.put(request)
    assert log.entries[-1]["input"]["messages"][1]["content"] == {
        "$ref": 2,
        "at": ["output", "message", "content"],
    }
    with log.trace(tmp_path) as trace:
        assert _read(trace, seq) == request


def test_the_tree_is_never_changed() -> None:
    """Interning leaves the value that it is given as it was."""
    log = Log()
    tree = {"messages": [{"role": "user", "content": _text(1, 3000)}], "headers": {str(i): "x" * 100 for i in range(5)}}
    before = copy.deepcopy(tree)
    for _ in range(3):
        log.put(tree)
    assert tree == before


def test_a_conversation_costs_each_message_once(tmp_path: Path) -> None:
    """200 turns of 1 KB: the trace is at most twice the distinct content, and each request comes back as it was sent."""
    log, messages, sent, distinct = Log(), [{"role": "system", "content": _text(0)}], [], 1000
    for turn in range(200):
        messages.append({"role": "user", "content": _text(2 * turn + 1)})
        request = {"model": "m", "messages": [*messages]}
        answer = {
            "status": 200,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": _text(2 * turn + 2)}}],
        }
        sent += [(log.put(request), request), (log.put(answer), answer)]
        messages.append(answer["choices"][0]["message"])  # type: ignore[index,arg-type]
        distinct += 2000
    with log.trace(tmp_path) as trace:
        assert trace.check().size <= 2 * distinct
        assert all(_read(trace, seq) == value for seq, value in sent)
        assert all(_read(trace, seq) == value for seq, value in reversed(sent))


@pytest.mark.parametrize("how", ["window", "marker", "edited"])
def test_a_conversation_that_is_cut_or_edited_grows_linearly(tmp_path: Path, how: str) -> None:
    """A sliding window, a marker that moves to the last message, an edited earlier turn: no message is written again.

    What follows the edit costs a short reference for each message, no more.
    """
    log, messages, sent = Log(), [{"role": "system", "content": _text(0)}], []
    for turn in range(100):
        messages.append({"role": "user", "content": _text(turn + 1)})
        request = {"messages": [dict(message) for message in messages]}
        if how == "window":
            request["messages"] = request["messages"][:1] + request["messages"][1:][-10:]
        elif how == "marker":
            request["messages"][-1]["cache_control"] = "ephemeral" * 10
        else:
            request["messages"][len(messages) // 2]["note"] = str(turn)
        sent.append((log.put(request), request))
    held = [each["output"] for each in log.entries if each["type"] == "blob"]
    elements = sum(len(output["v"] if isinstance(output, dict) else output) for output in held)
    assert elements < {"window": 1300, "marker": 500, "edited": 3000}[how]
    with log.trace(tmp_path) as trace:
        assert trace.check().size < 400_000
        assert all(_read(trace, seq) == value for seq, value in sent)


def test_the_beginning_of_a_known_list_is_another_list(tmp_path: Path) -> None:
    """A list that is the beginning of one written before comes back as long as it was, and costs one reference."""
    log = Log()
    messages = [{"role": "user", "content": _text(i)} for i in range(5)]
    seqs = [(log.put({"messages": messages[:n]}), n) for n in (5, 3, 3, 1, 5, 4)]
    with log.trace(tmp_path) as trace:
        assert [_read(trace, seq)["messages"] for seq, _ in seqs] == [messages[:n] for _, n in seqs]
        assert trace.check().size < 5 * 1000 + 4000


def test_what_is_expanded_is_shared(tmp_path: Path) -> None:
    """The same messages of later requests are the same objects: memory grows with the distinct content.

    Only the first request, whose prompt may never come again, holds its own.
    """
    log, messages, seqs = Log(), [], []
    for turn in range(20):
        messages.append({"role": "user", "content": _text(turn)})
        seqs.append(log.put({"messages": [*messages]}))
    with log.trace(tmp_path) as trace:
        read = [_read(trace, seq)["messages"] for seq in seqs[1:]]
    assert all(earlier[i] is read[-1][i] for earlier in read for i in range(len(earlier)))


_TEXTS = [_text(seed, length) for seed in (1, 2) for length in (70, 300, 1100, 9000)]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3) | st.sampled_from(_TEXTS),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from("abcdef"), inner, max_size=6),
    max_leaves=12,
)


@given(st.lists(st.tuples(_JSON, st.booleans()), max_size=8))
@settings(max_examples=examples(150), deadline=None)
def test_what_is_interned_comes_back(tmp_path_factory: pytest.TempPathFactory, trees: list[tuple[Any, bool]]) -> None:
    """Interned and expanded again, any sequence of values is what it was, in whatever order it is read."""
    log = Log()
    sent = [(log.put(tree, lists=lists), copy.deepcopy(tree)) for tree, lists in trees * 2]
    with log.trace(tmp_path_factory.mktemp("i")) as trace:
        assert all(_read(trace, seq) == tree for seq, tree in reversed(sent))


def test_a_long_chain_needs_no_recursion(tmp_path: Path) -> None:
    """A list that was extended 5,000 times is read without recursion, in the memory of one list."""
    entries = [entry("run.started", name="x"), entry("blob", output=["a"])]
    entries += [entry("blob", output={"$extend": seq, "v": [seq]}) for seq in range(2, 5002)]
    with Trace(write(tmp_path / "a.jsonl", entries)) as trace:
        assert trace.expand({"$ref": 5002}) == ["a", *range(2, 5002)]


# -- hostile references ------------------------------------------------------------------------------------------------


def _hostile(path: Path, blobs: list[Any], value: Any, **limits: int) -> Any:
    entries = [entry("run.started", name="x")]
    entries += [blob if isinstance(blob, dict) and "type" in blob else entry("blob", output=blob) for blob in blobs]
    entries.append(entry("tool.call", name="t", input=value))
    with Trace(write(path / "a.jsonl", entries), Limits(**limits)) as trace:
        trace.check()
        seq = len(entries)
        return trace.expand(trace.entry(seq)["input"], before=seq)


@pytest.mark.parametrize(
    ("blobs", "value", "line"),
    [
        ([{"$ref": 2}], {"$ref": 2}, 2),
        ([[{"$ref": 3}], [{"$ref": 2}]], {"$ref": 2}, 2),
        ([["a"]], [{"$ref": 3}], 3),
        ([["a"]], [{"$ref": 4}], 3),
        ([{"$extend": 2, "v": []}], {"$ref": 2}, 2),
        ([{"$extend": 3, "v": []}, ["a"]], {"$ref": 2}, 2),
        ([["a"], {"$extend": 2, "n": 2, "v": []}], {"$ref": 3}, 3),
        (["text", {"$extend": 2, "v": []}], {"$ref": 3}, 3),
        ([["a"], {"$extend": 2, "v": "b"}], {"$ref": 3}, 3),
        ([["a"]], {"$ref": 1}, 1),
        ([["a"]], {"$ref": True}, 3),
        ([["a"]], {"$ref": "2"}, 3),
        ([["a"]], {"$ref": -1}, 3),
        ([["a"]], {"$ref": 2, "more": 1}, 3),
        ([["a"]], {"$ref": 2, "at": 1}, 3),
        ([["a"]], {"$ref": 2, "at": -1}, 3),
        ([["a"]], {"$ref": 2, "at": [0, "x"]}, 3),
        ([["a"]], {"$ref": 2, "at": [[]]}, 3),
        ([[{"a": [1]}]], {"$ref": 2, "at": [0, "a"]}, 3),
        (["a"], {"$ref": 2, "at": 0}, 3),
        ([{"type": "tool.call", "name": "t"}], {"$ref": 2}, 2),
        ([{"type": "tool.call", "name": "t", "input": "a"}], {"$ref": 2, "at": ["output"]}, 3),
        ([{"type": "tool.call", "name": "t", "input": ["a"]}], {"$ref": 2, "at": ["input"]}, 3),
        ([{"type": "tool.call", "name": "t", "input": ["a"]}], {"$ref": 2, "at": 0}, 3),
        ([{"type": "tool.call", "name": "t", "input": ["a"]}, {"$extend": 2, "v": []}], {"$ref": 3}, 3),
        ([{"type": "tool.call", "name": "t", "input": {"$ref": 2, "at": ["input"]}}], {"$ref": 2, "at": ["input"]}, 2),
        ([{"type": "blob"}], {"$ref": 2}, 2),
    ],
)
def test_references_that_lead_nowhere(tmp_path: Path, blobs: list[Any], value: Any, line: int) -> None:
    """Cycles, forward references, references to what is no blob or has no such part: refused, naming the line."""
    with pytest.raises(TraceIntegrityError) as caught:
        _hostile(tmp_path, blobs, value)
    assert caught.value.__dict__["line"] == line


def test_a_billion_laughs_are_refused(tmp_path: Path) -> None:
    """References that multiply are refused by the size of what they stand for, before anything is built."""
    blobs: list[Any] = [["ha" * 50] * 10] + [[{"$ref": seq}] * 10 for seq in range(2, 30)]
    with pytest.raises(TraceIntegrityError, match="expands to more than 268435456 bytes"):
        _hostile(tmp_path, blobs, {"$ref": 30})
    wide = [["x" * 1000] * 1000]
    assert len(_hostile(tmp_path, wide, [{"$ref": 2}] * 3, expanded=4_000_000)) == 3
    with pytest.raises(TraceIntegrityError, match="line 3 expands to more than 4000000"):
        _hostile(tmp_path, wide, [{"$ref": 2}] * 4, expanded=4_000_000)


def test_references_cannot_nest_past_the_limit(tmp_path: Path) -> None:
    """A tower of references deeper than the limit is refused, however shallow each line is."""
    blobs: list[Any] = [["a"]] + [[{"$ref": seq}] for seq in range(2, 299)]
    assert _hostile(tmp_path, blobs, {"$ref": 299})
    blobs += [[{"$ref": seq}] for seq in range(299, 3000)]
    with pytest.raises(TraceIntegrityError, match="more than 300 levels"):
        _hostile(tmp_path, blobs, {"$ref": 3000})


def test_chains_of_long_lists_are_bounded(tmp_path: Path) -> None:
    """Lists that extend one another count for all that they hold."""
    blobs: list[Any] = [["x" * 1000] * 100] + [{"$extend": seq, "v": ["x" * 1000] * 100} for seq in range(2, 12)]
    with pytest.raises(TraceIntegrityError, match="expands to more than 1000000 bytes"):
        _hostile(tmp_path, blobs, {"$ref": 12}, expanded=1_000_000)
