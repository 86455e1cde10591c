"""Envelopes of requests: JSON both ways, errors that name the key, and two hashes."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ids import shown
from tracekit.agents import (
    IntentContext,
    IntentEnvelope,
    IntentMetadata,
    IntentRef,
    RoutingOptions,
    identity_hash,
    stable_hash,
)
from tracekit.agents.envelope import IDS_AND_TIMES
from tracekit.errors import EnvelopeError

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FINITE: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
WORDS = st.text(min_size=1, max_size=12)
MAYBE = st.none() | WORDS
TEXTS = st.lists(WORDS, max_size=3).map(tuple)
#: Keys that no field of an envelope has.
EXTRA = st.dictionaries(st.text().map(lambda key: f"x{key}"), FINITE, max_size=3)


@st.composite
def envelopes(draw: st.DrawFn) -> IntentEnvelope:
    strategy = draw(st.sampled_from(["direct", "fallback", "broadcast", "parallel"]))
    return IntentEnvelope(
        version=draw(WORDS),
        intent=IntentRef(draw(WORDS), draw(WORDS)),
        payload=draw(st.dictionaries(st.text(), FINITE, max_size=4)),
        context=IntentContext(draw(MAYBE), draw(MAYBE), draw(MAYBE | st.integers()), draw(TEXTS), draw(EXTRA)),
        metadata=IntentMetadata(draw(MAYBE), draw(MAYBE), draw(MAYBE), draw(MAYBE), draw(TEXTS), draw(EXTRA)),
        routing=RoutingOptions(strategy, draw(MAYBE), draw(TEXTS) if strategy == "fallback" else ()),
    )


def formula(value: Any) -> str:
    """The hash as it is published."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


@given(JSON)
def test_a_stable_hash_is_the_published_formula(value: Any) -> None:
    """Sorted keys, tight separators, ASCII: the same digest as any other implementation of the formula, on any JSON."""
    assert stable_hash(value) == formula(value)


def test_a_stable_hash_of_known_values() -> None:
    """The formula is pinned: text outside ASCII is escaped, and the order of keys does not matter."""
    assert stable_hash({}) == "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert stable_hash({"b": "ä", "a": [1, None]}) == stable_hash({"a": [1, None], "b": "ä"})
    assert stable_hash("ä") == "sha256:" + hashlib.sha256(b'"\\u00e4"').hexdigest()


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", {(1, 2): 3}])
def test_what_is_not_json_has_no_hash(value: Any) -> None:
    """Nothing is hashed by its ``repr``."""
    with pytest.raises(TypeError):
        stable_hash(value)


@given(envelopes())
def test_an_envelope_survives_json(envelope: IntentEnvelope) -> None:
    """Dictionary and JSON text lead back to an equal envelope with equal hashes."""
    assert IntentEnvelope.from_dict(envelope.as_dict()) == envelope
    again = IntentEnvelope.from_json(envelope.to_json())
    assert again == envelope
    assert again.envelope_hash == envelope.envelope_hash == formula(envelope.as_dict())
    assert again.identity_hash == envelope.identity_hash == identity_hash(envelope.as_dict())


def test_an_envelope_needs_an_intent_and_nothing_else() -> None:
    """A name is enough. Nothing is filled in that would be another at the next call: no id, no time."""
    envelope = IntentEnvelope(intent="greet")  # type: ignore[arg-type]  # a name stands for an IntentRef
    assert (
        envelope
        == IntentEnvelope.from_dict({"intent": "greet"})
        == IntentEnvelope.from_json('{"intent":{"name":"greet"}}')
    )
    assert envelope.as_dict() == {
        "version": "1.0",
        "intent": {"name": "greet", "version": "1.0"},
        "payload": {},
        "context": {},
        "metadata": {},
        "routing": {"strategy": "direct"},
    }


def test_both_spellings_of_keys_are_read() -> None:
    """Camel case, as other systems write it, and snake case, as Python does; camel case is written."""
    camel = {
        "intent": "greet",
        "context": {"sourceAgent": "a", "tags": ["x"], "tenant": 7},
        "metadata": {"requestId": "r", "identityChain": ["u", "v"]},
        "routing": {"strategy": "FALLBACK", "targetAgent": "b", "fallbackAgents": ["c"]},
    }
    snake = {
        "intent": "greet",
        "context": {"source_agent": "a", "tags": ["x"], "tenant": 7},
        "metadata": {"request_id": "r", "identity_chain": ["u", "v"]},
        "routing": {"strategy": "fallback", "target_agent": "b", "fallback_agents": ["c"]},
    }
    envelope = IntentEnvelope.from_dict(camel)
    assert envelope == IntentEnvelope.from_dict(snake)
    assert envelope.context.extra == {"tenant": 7}
    assert envelope.as_dict()["context"] == {"sourceAgent": "a", "tags": ["x"], "tenant": 7}
    assert envelope.as_dict()["routing"] == {"strategy": "fallback", "targetAgent": "b", "fallbackAgents": ["c"]}


WRONG: list[tuple[Any, str | None, str]] = [
    ({}, "intent", "no `intent`"),
    ({"intent": None}, "intent", "no `intent`"),
    ({"intent": ""}, "intent.name", "must be a non-empty string"),
    ({"intent": {}}, "intent.name", "no `name`"),
    ({"intent": {"name": 7}}, "intent.name", "not 7"),
    ({"intent": ["a"]}, "intent", "must be an object"),
    ({"intent": "a", "rooting": {}}, "rooting", "no key `rooting`"),
    ({"intent": {"name": "a", "nome": "b"}}, "intent.nome", "no key"),
    ({"intent": "a", "payload": [1]}, "payload", "must be an object"),
    ({"intent": "a", "payload": {1: 2}}, "payload", "string keys"),
    ({"intent": "a", "version": 1}, "version", "not 1"),
    ({"intent": "a", "context": {"tags": "x"}}, "context.tags", "a list of strings"),
    ({"intent": "a", "context": {"tags": [1]}}, "context.tags", "not 1"),
    ({"intent": "a", "context": {"priority": True}}, "context.priority", "a word or a number"),
    ({"intent": "a", "context": {"timestamp": 5}}, "context.timestamp", "not 5"),
    ({"intent": "a", "metadata": {"requestId": 5}}, "metadata.requestId", "not 5"),
    ({"intent": "a", "metadata": {"requestId": "x", "request_id": "y"}}, "metadata.request_id", "twice"),
    ({"intent": "a", "routing": {"strategy": "random"}}, "routing.strategy", "one of direct, fallback"),
    ({"intent": "a", "routing": {"fallbackAgents": ["b"]}}, "routing.fallbackAgents", "never be called"),
    ({"intent": "a", "routing": {"strategi": "direct"}}, "routing.strategi", "no key"),
]


@pytest.mark.parametrize(("tree", "key", "said"), WRONG, ids=[str(one[0])[:60] for one in WRONG])
def test_a_wrong_envelope_is_refused_with_the_key(tree: Any, key: str | None, said: str) -> None:
    """The error is a ValueError that names the key, and says what to do."""
    with pytest.raises(EnvelopeError) as caught:
        IntentEnvelope.from_dict(tree)
    assert said in caught.value.what
    assert caught.value.key == key  # type: ignore[attr-defined]
    assert caught.value.next_action
    assert isinstance(caught.value, ValueError)


def test_a_key_that_is_nearly_right_is_suggested() -> None:
    """A slip is told with what was meant."""
    with pytest.raises(EnvelopeError, match="did you mean `routing`"):
        IntentEnvelope.from_dict({"intent": "a", "rooting": {}})


@pytest.mark.parametrize("text", ["", "[]", "null", "{", b"\xff", "[" * 100_000], ids=shown)
def test_text_that_is_no_envelope_is_refused(text: str | bytes) -> None:
    """Whatever a file holds, the error is the envelope's own."""
    with pytest.raises(EnvelopeError):
        IntentEnvelope.from_json(text)


def test_a_payload_that_is_no_json_has_neither_text_nor_hash() -> None:
    """It is told as a wrong envelope, also where it was put there later."""
    inner: list[object] = []
    envelope = IntentEnvelope(intent=IntentRef("a"), payload={"when": inner})
    inner.append(object())
    for use in (envelope.to_json, lambda: envelope.envelope_hash, lambda: envelope.identity_hash):
        with pytest.raises(EnvelopeError, match="JSON values only"):
            use()


def test_a_key_of_ones_own_may_not_hide_a_field() -> None:
    """``extra`` can't say again what a field says."""
    with pytest.raises(EnvelopeError, match="can't be in `extra`"):
        IntentContext(extra={"sourceAgent": "a"})


# -- identity ------------------------------------------------------------------------------------------------------------------

IDS = {"requestId": "r-1", "traceId": "t-1", "createdAt": "2026-01-01", "spanId": "s", "correlationId": "c"}


@given(envelopes(), st.dictionaries(st.sampled_from(["requestId", "traceId", "createdAt", "spanId"]), WORDS), WORDS)
def test_ids_and_times_do_not_make_another_request(envelope: IntentEnvelope, ids: dict[str, str], time: str) -> None:
    """Two requests that differ in nothing else have one identity, and are told apart by their envelope hashes."""
    tree = envelope.as_dict()
    other = {**tree, "metadata": {**tree["metadata"], **ids}, "context": {**tree["context"], "timestamp": time}}
    assert identity_hash(other) == envelope.identity_hash
    assert (stable_hash(other) == envelope.envelope_hash) == (other == tree)


@pytest.mark.parametrize("part", ["context", "metadata"])
@pytest.mark.parametrize("key", sorted(IDS_AND_TIMES))
def test_ids_and_times_are_left_out_in_both_spellings(part: str, key: str) -> None:
    """Of keys of one's own, too: ``span_id`` no less than ``spanId``."""
    one, other = (IntentEnvelope.from_dict({"intent": "pay", part: {key: value}}) for value in ("1", "2"))
    assert one.identity_hash == other.identity_hash == identity_hash({"intent": "pay"})
    assert one.envelope_hash != other.envelope_hash


def test_a_dictionary_has_the_identity_of_its_envelope() -> None:
    """However short it is. What is no request has none."""
    assert identity_hash({"intent": "pay"}) == IntentEnvelope.from_dict({"intent": "pay"}).identity_hash
    for wrong in ({}, {"intent": "pay", "context": 5}, {"intents": "pay"}):
        with pytest.raises(EnvelopeError):
            identity_hash(wrong)
    for other in ("pay", None, 5):
        with pytest.raises(TypeError, match="identity_hash takes"):
            identity_hash(other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"intent": "other"},
        {"intent": {"name": "pay", "version": "2.0"}},
        {"payload": {"cents": 6}},
        {"payload": {"cents": 5, "requestId": "x"}},
        {"context": {"sourceAgent": "b"}},
        {"context": {"userId": 8}},
        {"metadata": {"source": "b"}},
        {"metadata": {"identityChain": ["b"]}},
        {"routing": {"strategy": "broadcast"}},
        {"version": "2"},
    ],
    ids=str,
)
def test_what_is_asked_for_makes_another_request(change: dict[str, Any]) -> None:
    """Everything but ids and times counts, ids inside the payload included."""
    base = {"intent": "pay", "payload": {"cents": 5}, "context": {"userId": 7}, "metadata": IDS}
    one, other = IntentEnvelope.from_dict(base), IntentEnvelope.from_dict({**base, **change})
    assert one.identity_hash != other.identity_hash


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("part", ["payload", "context", "metadata"])
def test_a_number_that_json_has_no_word_for_is_refused(part: str, number: float) -> None:
    """Wherever it is and however the envelope is made: other systems could not read it, and its hash would be of no JSON."""
    tree = {"intent": "greet", part: {"mine": [{"deep": number}]}}
    text = json.dumps(tree)
    makers: list[Callable[[], object]] = [
        lambda: IntentEnvelope.from_dict(tree),
        lambda: IntentEnvelope.from_json(text),
        lambda: IntentEnvelope.from_json(text.encode()),
    ]
    if part == "payload":
        makers.append(lambda: IntentEnvelope(intent="greet", payload={"deep": number}))  # type: ignore[arg-type]
        makers.append(
            lambda: dataclasses.replace(IntentEnvelope.from_dict({"intent": "greet"}), payload={"deep": number})
        )
    for make in makers:
        with pytest.raises(EnvelopeError):
            make()
    with pytest.raises(EnvelopeError):
        IntentEnvelope.from_json('{"intent": "greet", "payload": {"a": 1e999}}')


@pytest.mark.parametrize("value", [{1}, object(), b"x", datetime.date(2026, 1, 1)], ids=shown)
def test_a_payload_is_json_from_the_start(value: object) -> None:
    """Not only when it is sent."""
    with pytest.raises(EnvelopeError) as caught:
        IntentEnvelope.from_dict({"intent": "greet", "payload": {"deep": [value]}})
    assert caught.value.key == "payload"  # type: ignore[attr-defined]


def test_a_payload_that_was_spoilt_later_is_not_written() -> None:
    """``to_json`` writes JSON or nothing."""
    payload: dict[str, Any] = {"list": []}
    envelope = IntentEnvelope.from_dict({"intent": "greet", "payload": payload})
    payload["list"].append(float("nan"))
    with pytest.raises(EnvelopeError):
        envelope.to_json()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"intent": "greet", "intent": "pay"}', "intent"),
        ('{"intent": "pay", "payload": {"to": "me", "cents": 1, "to": "you"}}', "to"),
        ('{"intent": "pay", "metadata": {"requestId": "1", "requestId": "1"}}', "requestId"),
    ],
)
def test_a_key_that_is_there_twice_is_refused(text: str, key: str) -> None:
    """Readers differ in which one counts; the error names it."""
    with pytest.raises(EnvelopeError, match=f"`{key}` twice") as caught:
        IntentEnvelope.from_json(text)
    assert caught.value.key == key  # type: ignore[attr-defined]
