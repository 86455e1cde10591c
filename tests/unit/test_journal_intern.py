"""Interning: what comes again is written once, and comes back whole."""

from __future__ import annotations

import copy
import gc
import random
import string
import sys
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

_AT = ["input"]


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
    assert log.blobs == 0
    lists = [each["input"]["messages"] for each in log.entries[1:]]
    elements = sum(len(written["v"] if isinstance(written, dict) else written) for written in lists)
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

    What a request itself holds, it holds as its own.
    """
    log, messages, seqs = Log(), [], []
    for turn in range(20):
        messages.append({"role": "user", "content": _text(turn)})
        seqs.append(log.put({"messages": [*messages]}))
    with log.trace(tmp_path) as trace:
        read = [_read(trace, seq)["messages"] for seq in seqs]
    assert all(earlier[i] is read[-1][i] for earlier in read for i in range(len(earlier) - 1))


def test_a_turn_costs_no_entry_but_its_own(tmp_path: Path) -> None:
    """A list that begins as an earlier one refers to it and adds the rest, in its own entry; one that is sent again is one reference."""
    log, tools = Log(), [{"name": "search", "description": _text(9)}]
    first = [{"role": "user", "content": _text(1)}]
    second = [*first, {"role": "assistant", "content": _text(2)}]
    edited = [first[0], {"role": "user", "content": _text(3)}, second[1]]
    sent = [{"messages": messages, "tools": tools} for messages in (first, second, second, edited)]
    seqs = [log.put(request) for request in sent]
    assert log.blobs == 0
    again = {"$ref": 2, "at": ["input", "tools"]}
    assert [each["input"] for each in log.entries[1:]] == [
        sent[0],
        {"messages": {"$extend": 2, "at": ["input", "messages"], "v": second[1:]}, "tools": again},
        {"messages": {"$ref": 3, "at": ["input", "messages"]}, "tools": again},
        {
            "messages": {
                "$extend": 2,
                "at": ["input", "messages"],
                "v": [edited[1], {"$ref": 3, "at": ["input", "messages", 0]}],
            },
            "tools": again,
        },
    ]
    with log.trace(tmp_path) as trace:
        assert [_read(trace, seq) for seq in reversed(seqs)] == sent[::-1]


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
    at = ["input", "m"]
    entries = [entry("run.started", name="x"), _call({"m": ["a"]})]
    entries += [_call({"m": {"$extend": seq, "at": at, "v": [seq]}}) for seq in range(2, 5002)]
    with Trace(write(tmp_path / "a.jsonl", entries)) as trace:
        assert trace.expand({"$ref": 5002, "at": at}) == ["a", *range(2, 5002)]
        assert _read(trace, 5002) == {"m": ["a", *range(2, 5002)]}


def test_what_was_cut_off_counts_no_longer(tmp_path: Path) -> None:
    """A long list that was cut and filled up again and again is as large as what it holds, not as all that it ever held."""
    at = ["input"]
    entries = [entry("run.started", name="x"), _call(["x" * 1000] * 100)]
    entries += [_call({"$extend": seq, "at": at, "n": 50, "v": ["y" * 1000] * 50}) for seq in range(2, 20)]
    with Trace(write(tmp_path / "a.jsonl", entries), Limits(expanded=2_000_000)) as trace:
        assert _read(trace, len(entries)) == ["x" * 1000] * 50 + ["y" * 1000] * 50
        assert len(trace.expand([{"$ref": len(entries), "at": at}] * 9)) == 9


@pytest.mark.parametrize("seed", range(3))
def test_lists_that_extend_any_part_of_others(tmp_path: Path, seed: int) -> None:
    """However lists extend one another, in whatever order they are read, each has the elements that it should, and is as large as these."""
    chance = random.Random(seed)
    entries, lists = [entry("run.started", name="x"), _call([0, 1, 2])], [[0, 1, 2]]
    for number in range(3, 200):
        base = chance.randrange(len(lists)) if chance.random() < 0.3 else len(lists) - 1
        cut = chance.randint(0, len(lists[base])) if chance.random() < 0.5 else len(lists[base])
        entries.append(_call({"$extend": base + 2, "at": _AT, "n": cut, "v": [number] * chance.randint(0, 3)}))
        lists.append(lists[base][:cut] + entries[-1]["input"]["v"])
    order = [*range(len(lists))]
    chance.shuffle(order)
    most = max(map(len, lists)) * 8 + 8
    with Trace(write(tmp_path / "a.jsonl", entries)) as trace:
        for number in order:
            assert trace.expand([{"$ref": number + 2, "at": _AT}]) == [lists[number]]
            assert _read(trace, number + 2) == lists[number]
            unit = trace._blobs._units(number + 2)[("input",)]
            assert unit.size == 8 + 8 * len(lists[number]) <= most


def _call(value: Any) -> dict[str, Any]:
    return entry("tool.call", name="t", input=value)


# -- hostile references ------------------------------------------------------------------------------------------------


def _hostile(path: Path, entries: list[Any], value: Any, **limits: int) -> Any:
    """Expand a value after these entries: a dictionary with a type, or the input of a call."""
    whole = [entry("run.started", name="x")]
    whole += [one if isinstance(one, dict) and "type" in one else _call(one) for one in entries]
    whole.append(_call(value))
    with Trace(write(path / "a.jsonl", whole), Limits(**limits)) as trace:
        trace.check()
        return _read(trace, len(whole))


def _blob(value: Any) -> dict[str, Any]:
    return {"type": "blob", "output": value}


@pytest.mark.parametrize(
    ("entries", "value", "line"),
    [
        # cycles, and references forwards
        ([_blob({"$ref": 2})], {"$ref": 2}, 2),
        ([_blob([{"$ref": 3}]), _blob([{"$ref": 2}])], {"$ref": 2}, 2),
        ([_blob(["a"])], [{"$ref": 3}], 3),
        ([_blob(["a"])], [{"$ref": 4}], 3),
        ([["a"]], [{"$ref": 3, "at": _AT}], 3),
        ([["a"]], {"$extend": 3, "at": _AT, "v": []}, 3),
        ([{"$extend": 2, "at": _AT, "v": []}], {"$ref": 2, "at": _AT}, 2),
        ([{"$extend": 3, "at": _AT, "v": []}, ["a"]], {"$extend": 2, "at": _AT, "v": []}, 2),
        ([[{"$ref": 2, "at": [*_AT, 0]}]], {"$ref": 2, "at": _AT}, 2),
        ([{"a": {"$extend": 2, "at": [*_AT, "b"], "v": []}, "b": ["b"]}], {"$ref": 2, "at": [*_AT, "a"]}, 2),
        # extensions of what is no such list
        ([["a"]], {"$extend": 2, "at": _AT, "n": 2, "v": []}, 3),
        ([["a"]], {"$extend": 2, "at": _AT, "n": -1, "v": []}, 3),
        ([["a"]], {"$extend": 2, "at": _AT, "n": True, "v": []}, 3),
        ([["a"]], {"$extend": 2, "at": _AT, "v": "b"}, 3),
        ([["a"]], {"$extend": 2, "at": _AT}, 3),
        ([["a"]], {"$extend": 2, "v": []}, 3),
        ([["a"]], {"$extend": 2, "at": [], "v": []}, 3),
        ([["a"]], {"$extend": 2, "at": _AT, "v": [], "more": 1}, 3),
        ([["a"]], {"$extend": 2, "at": _AT, "v": [], "$ref": 2}, 3),
        ([[["a"]]], {"$extend": 2, "at": [*_AT, 0], "v": []}, 3),
        ([["a"], {"$ref": 2, "at": _AT}], {"$extend": 3, "at": _AT, "v": []}, 3),
        (["text"], {"$extend": 2, "at": _AT, "v": []}, 2),
        ([{"a": 1}], {"$extend": 2, "at": _AT, "v": []}, 2),
        ([{"a": 1}], {"$extend": 2, "at": [*_AT, "b"], "v": []}, 2),
        ([_blob(["a"])], {"$extend": 2, "at": ["output"], "v": []}, 2),
        # references to what is no blob, or to a part that is not there
        ([["a"]], {"$ref": 1}, 1),
        ([["a"]], {"$ref": 2}, 2),
        ([{"type": "blob"}], {"$ref": 2}, 2),
        ([_blob(["a"])], {"$ref": True}, 3),
        ([_blob(["a"])], {"$ref": "2"}, 3),
        ([_blob(["a"])], {"$ref": -1}, 3),
        ([_blob(["a"])], {"$ref": 2, "more": 1}, 3),
        ([_blob(["a"])], {"$ref": 2, "at": 0}, 3),
        ([_blob(["a"])], {"$ref": 2, "at": []}, 3),
        ([_blob(["a"])], {"$ref": 2, "at": ["output"]}, 2),
        ([["a"]], {"$ref": 2, "at": [*_AT, 1]}, 3),
        ([["a"]], {"$ref": 2, "at": [*_AT, -1]}, 3),
        ([["a"]], {"$ref": 2, "at": [*_AT, True]}, 3),
        ([["a"]], {"$ref": 2, "at": [*_AT, 0, 0]}, 3),
        ([["a"]], {"$ref": 2, "at": [*_AT, []]}, 3),
        ([["a"]], {"$ref": 2, "at": [0]}, 3),
        ([["a"]], {"$ref": 2, "at": ["output"]}, 3),
        ([["a"]], {"$ref": 2, "at": ["type"]}, 3),
        ([[{"a": [1]}]], {"$ref": 2, "at": [*_AT, 0, "a"]}, 3),
        ([[{"a": [1]}]], {"$ref": 2, "at": [*_AT, 0, "a", 0]}, 3),
        ([{"a": 1}], {"$ref": 2, "at": [*_AT, "a"]}, 2),
        ([{"a": 1}], {"$ref": 2, "at": _AT}, 2),
        ([["a"], {"$extend": 2, "at": _AT, "v": ["b"]}], {"$ref": 3, "at": [*_AT, 1]}, 4),
        ([["a"], {"$extend": 2, "at": _AT, "v": ["b"]}], {"$ref": 3, "at": [*_AT, "v"]}, 4),
        ([["text"], [{"$ref": 2, "at": [*_AT, 0]}]], {"$ref": 3, "at": [*_AT, 0, "$ref"]}, 4),
    ],
)
def test_references_that_lead_nowhere(tmp_path: Path, entries: list[Any], value: Any, line: int) -> None:
    """Cycles, forward references, references to what is no blob or has no such part: refused, naming the line."""
    with pytest.raises(TraceIntegrityError) as caught:
        _hostile(tmp_path, entries, value)
    assert caught.value.__dict__["line"] == line


def test_a_path_through_a_reference_leads_nowhere(tmp_path: Path) -> None:
    """A string is found where it is written, and not through a reference, whether or not that was resolved already."""
    whole = [entry("run.started", name="x"), _call([{"a": "text"}]), _call([{"$ref": 2, "at": [*_AT, 0]}, "own"])]
    with Trace(write(tmp_path / "a.jsonl", whole)) as trace:
        for _ in range(2):
            with pytest.raises(TraceIntegrityError, match="which does not have it"):
                trace.expand({"b": {"$ref": 3, "at": [*_AT, 0, "a"]}})
            assert trace.expand([{"$ref": 3, "at": _AT}, {"$ref": 3, "at": [*_AT, 1]}]) == [
                [{"a": "text"}, "own"],
                "own",
            ]


def test_a_billion_laughs_are_refused(tmp_path: Path) -> None:
    """References that multiply are refused by the size of what they stand for, before anything is built."""
    laughs: list[Any] = [["ha" * 50] * 10] + [[{"$ref": seq, "at": _AT}] * 10 for seq in range(2, 30)]
    blobs: list[Any] = [_blob(["ha" * 50] * 10)] + [_blob([{"$ref": seq}] * 10) for seq in range(2, 30)]
    for entries, value in ((laughs, {"$ref": 30, "at": _AT}), (blobs, {"$ref": 30})):
        with pytest.raises(TraceIntegrityError, match="expands to more than 268435456 bytes"):
            _hostile(tmp_path, entries, value)
    wide = [["x" * 1000] * 1000]
    assert len(_hostile(tmp_path, wide, [{"$ref": 2, "at": _AT}] * 3, expanded=4_000_000)) == 3
    with pytest.raises(TraceIntegrityError, match="line 3 expands to more than 4000000"):
        _hostile(tmp_path, wide, [{"$ref": 2, "at": _AT}] * 4, expanded=4_000_000)


def test_extensions_that_multiply_are_refused(tmp_path: Path) -> None:
    """Lists within lists that each extend a long one are refused by what they hold, before they are built."""
    rows = [{"$extend": 2, "at": _AT, "v": []}] * 100
    for value in (rows, {"$ref": 3, "at": _AT}, {"$extend": 3, "at": _AT, "v": []}, {"$ref": 3, "at": [*_AT, 0]}):
        with pytest.raises(TraceIntegrityError, match="expands to more than 4000000 bytes"):
            _hostile(tmp_path, [[1] * 10_000, rows], value, expanded=4_000_000)
    assert _hostile(tmp_path, [[1], rows], {"$ref": 3, "at": _AT}, expanded=4_000_000) == [[1]] * 100


def test_references_cannot_nest_past_the_limit(tmp_path: Path) -> None:
    """A tower of references deeper than the limit is refused, however shallow each line is."""
    entries: list[Any] = [["a"]] + [[{"$ref": seq, "at": _AT}] for seq in range(2, 299)]
    assert _hostile(tmp_path, entries, {"$ref": 299, "at": _AT})
    entries += [[{"$ref": seq, "at": _AT}] for seq in range(299, 3000)]
    with pytest.raises(TraceIntegrityError, match="more than 300 levels"):
        _hostile(tmp_path, entries, {"$ref": 3000, "at": _AT})


def test_chains_of_long_lists_are_bounded(tmp_path: Path) -> None:
    """Lists that extend one another count for all that they hold."""
    entries: list[Any] = [["x" * 1000] * 100]
    entries += [{"$extend": seq, "at": _AT, "v": ["x" * 1000] * 100} for seq in range(2, 12)]
    for value in ({"$ref": 12, "at": _AT}, {"$extend": 12, "at": _AT, "v": []}):
        with pytest.raises(TraceIntegrityError, match="expands to more than 1000000 bytes"):
            _hostile(tmp_path, entries, value, expanded=1_000_000)


def test_a_finalizer_reads_the_trace_that_is_just_being_read(tmp_path: Path) -> None:
    """Wherever the garbage collector calls it, both get what is in the trace."""
    log = Log()
    messages = [{"role": "user", "content": _text(n)} for n in range(12)]
    _, first, second = (log.put({"messages": messages[:count]}) for count in (3, 6, 12))
    inside: list[bool] = []

    class Reads:
        def __init__(self) -> None:
            self.itself = self  # so that only the collector finds it

        def __del__(self) -> None:
            frame = sys._getframe()
            names: set[str] = set()
            while (above := frame.f_back) is not None:
                frame = above
                names.add(frame.f_code.co_name)
            inside.append("_fill" in names or "_needs" in names or "_resolve" in names)
            assert len(_read(trace, first)["messages"]) == 6

    before = gc.get_threshold()
    gc.collect()
    gc.freeze()  # what the other tests have left need not be looked through each time, here and in the tests after this
    try:
        for allocated in range(1, 400):
            gc.disable()
            gc.collect()
            trace = log.trace(tmp_path)
            assert trace.status.state == "complete" or len(trace)
            Reads()
            gc.set_threshold(gc.get_count()[0] + allocated)
            gc.enable()
            assert _read(trace, second) == {"messages": messages}
    finally:
        gc.set_threshold(*before)
        gc.enable()
    assert any(inside)
