"""Calls that happen once: whatever calls them, how many at a time, and in how many runs."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.once import once, once_async
from tests.support.processes import python
from tracekit import Budget, record, recovery, replay, traced_tool
from tracekit._journal import keys
from tracekit._journal.keys import Keys, Owner
from tracekit._policy import once as elsewhere
from tracekit._reality import system
from tracekit.errors import (
    BudgetExceededError,
    ContractViolationError,
    LogWriteError,
    RecoveryRefusedError,
    StepTimeoutError,
)
from tracekit.integration import Store

MANY = 32


class Ledger:
    """What really happened, outside of every trace."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def pay(self, given: Any) -> dict[str, Any]:
        self.lines.append(given)
        return {"paid": given, "number": len(self.lines)}


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def entries(run_id: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(Store().path(run_id)).read_bytes().splitlines()]


def of_type(run_id: str, *kinds: str) -> list[dict[str, Any]]:
    return [entry for entry in entries(run_id) if entry["type"] in kinds]


def recorded(program: Callable[[], Any]) -> tuple[str, Any]:
    with record("once") as run:
        result = program()
    return run.id, result


def replayed(run_id: str, program: Callable[[], Any]) -> Any:
    with replay(run_id) as session:
        result = program()
    assert session.report.exact
    return result


# -- in one run --------------------------------------------------------------------------------------------------------------


def test_a_second_call_is_given_the_recorded_result(ledger: Ledger) -> None:
    """Two calls under one key are one effect, and both get its result; a replay does, too, and makes none."""
    pay = once(ledger.pay)

    def program() -> Any:
        return [pay("ACME"), pay("ACME"), pay("Other"), pay("ACME")]

    run_id, result = recorded(program)
    assert ledger.lines == ["ACME", "Other"]
    assert [one["number"] for one in result] == [1, 1, 2, 1]
    assert replayed(run_id, program) == result
    assert ledger.lines == ["ACME", "Other"]
    calls, skipped = of_type(run_id, "tool.call"), of_type(run_id, "tool.skipped")
    first = calls[0]
    assert [call["meta"]["info"].get("duplicate_of") for call in calls] == [None, first["seq"], None, first["seq"]]
    assert len({call["meta"]["info"]["once"] for call in calls}) == 2
    assert [one["meta"]["info"] for one in skipped] == [{"reason": "exactly_once", "of": first["seq"]}] * 2
    assert [one["output"] for one in skipped] == [result[0], result[0]]


def test_threads_share_one_call(ledger: Ledger) -> None:
    """However many threads call at once, the effect happens once, all get its result, and the replay is exact every time."""
    gate = threading.Barrier(MANY)

    def slow(given: Any) -> Any:
        entered.wait()
        return ledger.pay(given)

    pay = once(slow)

    def one(number: int) -> Any:
        gate.wait()
        return pay("ACME")

    def program() -> Any:
        with ThreadPoolExecutor(MANY) as pool:
            return list(pool.map(one, range(MANY)))

    entered = threading.Barrier(1)
    run_id, result = recorded(program)
    assert ledger.lines == ["ACME"]
    assert result == [{"paid": "ACME", "number": 1}] * MANY
    assert len(of_type(run_id, "tool.skipped")) == MANY - 1
    for _ in range(3):
        assert replayed(run_id, program) == result
    assert ledger.lines == ["ACME"]


def test_tasks_share_one_call(ledger: Ledger) -> None:
    """Tasks that make the same exactly-once call at the same time get the result of one call, and the event loop is not
    blocked meanwhile."""

    async def slow(given: Any) -> Any:
        await asyncio.sleep(0.01)
        return ledger.pay(given)

    pay = once_async(slow)

    async def work() -> Any:
        return await asyncio.gather(*(pay("ACME") for _ in range(MANY)))

    def program() -> Any:
        return asyncio.run(work())

    run_id, result = recorded(program)
    assert ledger.lines == ["ACME"]
    assert result == [{"paid": "ACME", "number": 1}] * MANY
    for _ in range(3):
        assert replayed(run_id, program) == result
    assert ledger.lines == ["ACME"]


def test_the_decorator_keeps_its_promise(ledger: Ledger) -> None:
    """Declared on a tool: threads, tasks, both at once; a failure and a call that ran out of time are results, too."""

    @traced_tool(side_effect="irreversible", exactly_once=True)
    def pay(given: str) -> Any:
        return ledger.pay(given)

    @traced_tool(side_effect="irreversible", exactly_once="store", idempotency_key="order")
    async def book(given: int, order: str) -> Any:
        await asyncio.sleep(0.005)
        return ledger.pay(order)

    @traced_tool(side_effect="irreversible", exactly_once=True)
    def decline(given: str) -> None:
        ledger.pay(given)
        raise ConnectionError("declined")

    @traced_tool(side_effect="irreversible", exactly_once=True, timeout_ms=20)
    async def slow(given: str) -> None:
        ledger.pay(given)
        await asyncio.Event().wait()

    async def work() -> list[Any]:
        found = await asyncio.gather(*(book(number, "order") for number in range(MANY)))
        for call in (slow, slow):
            try:
                await call("slow")
            except StepTimeoutError as error:
                found.append({"late": error.in_doubt})
        return found

    def program() -> list[Any]:
        with ThreadPoolExecutor(MANY) as pool:
            found = list(pool.map(lambda _: pay("paid"), range(MANY)))
        for _ in range(2):
            try:
                decline("declined")
            except ConnectionError as error:
                found.append({"error": str(error)})
        return found + asyncio.run(work())

    run_id, result = recorded(program)
    assert ledger.lines == ["paid", "declined", "order", "slow"]
    assert len({json.dumps(one) for one in result}) == 4
    for _ in range(3):
        assert replayed(run_id, program) == result
    second, again = recorded(lambda: asyncio.run(book(1, "order")))
    assert again in result
    assert replayed(second, lambda: asyncio.run(book(1, "order"))) == again
    assert ledger.lines == ["paid", "declined", "order", "slow"]


def test_the_second_caller_waits_for_the_first_in_the_order_of_the_recording(ledger: Ledger) -> None:
    """Which of several equal exactly-once calls came first, and was made, is the same in a replay."""
    order: list[int] = []

    async def slow(given: Any) -> Any:
        await asyncio.sleep(0.005)
        return ledger.pay(given)

    pay = once_async(slow)

    async def one(number: int) -> None:
        await asyncio.sleep(0.001 * (number % 3))
        await pay("ACME")
        order.append(number)

    def program() -> Any:
        async def work() -> None:
            await asyncio.gather(*(one(number) for number in range(9)))

        order.clear()
        asyncio.run(work())
        return list(order)

    run_id, result = recorded(program)
    for _ in range(3):
        assert replayed(run_id, program) == result
    assert ledger.lines == ["ACME"]


def test_a_failure_is_the_result_of_every_call(ledger: Ledger) -> None:
    """The step ran once: its error is what a second caller gets, its own copy of it."""

    def fails(given: Any) -> None:
        ledger.pay(given)
        raise ValueError("declined")

    pay = once(fails)

    def program() -> list[str]:
        said = []
        for _ in range(3):
            try:
                pay("ACME")
            except ValueError as error:
                said.append(str(error))
        return said

    run_id, result = recorded(program)
    assert result == ["declined"] * 3
    assert ledger.lines == ["ACME"]
    assert replayed(run_id, program) == result
    assert [one["error"]["text"] for one in of_type(run_id, "tool.skipped")] == ["declined"] * 2


def test_a_cancelled_call_is_in_doubt_for_the_next(ledger: Ledger) -> None:
    """A call that was cancelled may have done something: it is not repeated, and nobody else is cancelled by it."""

    async def forever(given: Any) -> None:
        ledger.pay(given)
        await asyncio.Event().wait()

    pay = once_async(forever)

    async def work() -> str:
        first = asyncio.create_task(pay("ACME"))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        try:
            await pay("ACME")
        except ContractViolationError as error:
            return error.what
        return "repeated"

    def program() -> str:
        return asyncio.run(work())

    run_id, result = recorded(program)
    assert "CancelledError" in result
    assert ledger.lines == ["ACME"]
    assert replayed(run_id, program) == result


def test_a_duplicate_that_is_cancelled_leaves_the_first_alone(ledger: Ledger) -> None:
    """A task that is cancelled while it waits for another's call ends; the call goes on, once."""

    async def slow(given: Any) -> Any:
        await asyncio.sleep(0.01)
        return ledger.pay(given)

    pay = once_async(slow)

    async def work() -> Any:
        first, second = (asyncio.create_task(pay("ACME")) for _ in range(2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second.cancel()
        return [type(one).__name__ for one in await asyncio.gather(first, second, return_exceptions=True)]

    def program() -> Any:
        return asyncio.run(work())

    run_id, result = recorded(program)
    assert result == ["dict", "CancelledError"]
    assert ledger.lines == ["ACME"]
    assert replayed(run_id, program) == result


def test_what_the_first_caller_does_to_its_result_is_not_the_second_ones(ledger: Ledger) -> None:
    """Each caller has a value of its own."""
    pay = once(ledger.pay)

    def program() -> Any:
        pay("ACME")["paid"] = "changed"
        return pay("ACME")

    run_id, result = recorded(program)
    assert result == {"paid": "ACME", "number": 1}
    assert replayed(run_id, program) == result


def test_a_key_tells_tools_apart(ledger: Ledger) -> None:
    """Two tools under the same key are two calls."""

    def refund(given: Any) -> Any:
        return ledger.pay(given)

    pay, back = once(ledger.pay), once(refund)

    def program() -> Any:
        return pay("ACME", b"key"), back("ACME", b"key")

    recorded(program)
    assert ledger.lines == ["ACME", "ACME"]


def test_what_if_makes_a_live_call_once(ledger: Ledger) -> None:
    """A call that goes live in a replay is made once in the new run, too."""
    pay = once(ledger.pay, side_effect="reversible")

    def program() -> Any:
        return [pay("ACME"), pay("ACME")]

    run_id, result = recorded(program)
    with replay(run_id, live={"tool:Ledger.pay"}):
        again = program()
    assert ledger.lines == ["ACME", "ACME"]
    assert again == [{"paid": "ACME", "number": 2}] * 2
    assert result == [{"paid": "ACME", "number": 1}] * 2


# -- what could never end ----------------------------------------------------------------------------------------------------


def _refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except ContractViolationError as error:
        return error.what
    return "made"


def test_a_call_inside_itself_is_refused_at_once(ledger: Ledger) -> None:
    """A duplicate inside the first one's own body can never be answered: refused, recorded, replayed."""

    def nested(given: Any) -> Any:
        ledger.pay(given)
        return _refused(lambda: pay(given))

    pay = once(nested)

    def program() -> Any:
        return pay("ACME")

    run_id, result = recorded(program)
    assert "by that call's own code" in result
    assert ledger.lines == ["ACME"]
    assert len(of_type(run_id, "contract.violated")) == 1
    assert replayed(run_id, program) == result


def test_a_thread_of_the_call_is_its_own_code(ledger: Ledger) -> None:
    """An exactly-once call that makes itself again, through another tool and a thread, is refused instead of waiting
    for itself for ever."""

    @traced_tool(side_effect="read_only")
    def between(given: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: _refused(lambda: pay(given))).result()

    def nested(given: Any) -> Any:
        ledger.pay(given)
        return between(given)

    pay = once(nested)

    def program() -> Any:
        return pay("ACME")

    run_id, result = recorded(program)
    assert "by that call's own code" in result
    assert ledger.lines == ["ACME"]
    assert replayed(run_id, program) == result


def test_two_calls_that_wait_for_each_other_do_not_hang(ledger: Ledger) -> None:
    """Each inside the other's body: one of them is told, both end."""
    both = threading.Barrier(2)

    def left(given: Any) -> Any:
        ledger.pay("left")
        both.wait()
        return _refused(lambda: right_(given))

    def right(given: Any) -> Any:
        ledger.pay("right")
        both.wait()
        return _refused(lambda: left_(given))

    left_, right_ = once(left), once(right)

    def program() -> Any:
        with ThreadPoolExecutor(2) as pool:
            found = [pool.submit(left_, 1), pool.submit(right_, 1)]
            return [one.result() for one in found]

    run_id, result = recorded(program)
    assert sorted(ledger.lines) == ["left", "right"]
    assert any("by that call's own code" in str(one) for one in result)
    assert replayed(run_id, program) == result


def test_a_call_that_blocks_the_loop_of_its_first_one_is_refused(ledger: Ledger) -> None:
    """A plain call in the thread whose event loop the first one needs: waiting would stop both."""

    async def slow(given: Any) -> Any:
        await asyncio.sleep(0.001)
        return ledger.pay(given)

    slow.__qualname__ = "same"

    def plain(given: Any) -> Any:
        return ledger.pay(given)

    plain.__qualname__ = "same"
    pay, pay_now = once_async(slow), once(plain)

    async def work() -> Any:
        first = asyncio.create_task(pay("ACME"))
        await asyncio.sleep(0)
        said = _refused(lambda: pay_now("ACME"))
        return said, await first

    def program() -> Any:
        return asyncio.run(work())

    run_id, result = recorded(program)
    assert "would never end" in result[0]
    assert ledger.lines == ["ACME"]
    assert replayed(run_id, program) == result


def test_a_thread_waits_for_a_task(ledger: Ledger) -> None:
    """Between a task and a thread the second one waits too, whichever it is."""

    async def slow(given: Any) -> Any:
        await asyncio.sleep(0.005)
        return ledger.pay(given)

    def plain(given: Any) -> Any:
        return ledger.pay(given)

    slow.__qualname__ = plain.__qualname__ = "same"
    pay, pay_now = once_async(slow), once(plain)

    async def work() -> Any:
        first = asyncio.create_task(pay("ACME"))
        await asyncio.sleep(0)
        return await asyncio.gather(asyncio.to_thread(pay_now, "ACME"), first, pay("ACME"))

    def program() -> Any:
        return asyncio.run(work())

    run_id, result = recorded(program)
    assert result == [{"paid": "ACME", "number": 1}] * 3
    assert ledger.lines == ["ACME"]
    for _ in range(3):
        assert replayed(run_id, program) == result


# -- secrets -----------------------------------------------------------------------------------------------------------------


def test_the_trace_does_not_tell_the_key(ledger: Ledger, tmp_path: Path) -> None:
    """Inputs that differ only in a secret are two calls; the trace holds neither the secret nor the store's."""
    cards = ["sk-ant-api03-" + "aZx9qT7mB2" * 4, "sk-ant-api03-" + "bZx9qT7mB2" * 4]
    pay = once(lambda given: ledger.pay(given)["number"])

    def program() -> None:
        for card in cards:
            pay(card)
            pay(card)

    run_id, _ = recorded(program)
    assert ledger.lines == cards
    content = Path(Store().path(run_id)).read_bytes()
    secret = Path(Store().root, "secret").read_bytes()
    assert len(secret) == 32
    assert secret.hex().encode() not in content
    assert not any(card.encode() in content for card in cards)
    replayed(run_id, program)
    assert stat.S_IMODE(os.stat(Path(Store().root, "secret")).st_mode) == 0o600


def test_the_second_caller_gets_what_the_first_got_though_the_log_may_not_hold_it(ledger: Ledger) -> None:
    """Redaction changes what is stored, not what the program gets."""
    secret = "sk-ant-api03-" + "cZx9qT7mB2" * 4

    def token(given: Any) -> str:
        ledger.pay(given)
        return secret

    ask = once(token)
    with pytest.warns(RuntimeWarning, match="redacted"):
        run_id, result = recorded(lambda: [ask("ACME"), ask("ACME")])
    assert result == [secret, secret]
    assert secret.encode() not in Path(Store().path(run_id)).read_bytes()


def test_a_result_that_lost_a_secret_answers_no_other_run(ledger: Ledger) -> None:
    """Another run of the store is not answered with the placeholder: its call is refused, and says why."""
    secret = "sk-ant-api03-" + "dZx9qT7mB2" * 4

    def token(given: Any) -> str:
        ledger.pay(given)
        return secret

    ask = once(token, store=True)
    with pytest.warns(RuntimeWarning, match="redacted"):
        recorded(lambda: ask("ACME"))
    run_id, said = recorded(lambda: _refused(lambda: ask("ACME")))
    assert "a secret in it was redacted" in said
    assert replayed(run_id, lambda: _refused(lambda: ask("ACME"))) == said
    assert ledger.lines == ["ACME"]


def test_processes_that_make_the_secret_at_once_agree(tmp_path: Path) -> None:
    """Whoever comes first makes it; everybody else reads that one."""
    start = threading.Barrier(8)

    def digest(_: int) -> str:
        kept = Keys(str(tmp_path))
        start.wait()
        return kept.digest(b"x")

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(digest, range(8)))) == 1
    assert sorted(os.listdir(tmp_path)) == ["secret"]


@pytest.mark.parametrize("content", [b"short", b""])
def test_a_secret_that_is_none_is_told(tmp_path: Path, content: bytes) -> None:
    """A damaged secret would make other keys: nothing is called under it."""
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(LogWriteError, match="32 bytes"):
        Keys(str(tmp_path)).digest(b"x")


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither the secret, nor a key, nor their directory may be a link to somewhere else."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret").write_bytes(b"x" * 32)
    for name, target in (("a", "secret"), ("b", "keys")):
        root = tmp_path / name
        root.mkdir()
        (root / target).symlink_to(elsewhere / "secret" if target == "secret" else elsewhere)
        kept = Keys(str(root))
        with pytest.raises(LogWriteError):
            kept.digest(b"x") if target == "secret" else kept.claim("0" * 64, "run")
    assert sorted(os.listdir(elsewhere)) == ["secret"]


# -- the whole store ---------------------------------------------------------------------------------------------------------


def test_a_key_has_one_owner(tmp_path: Path) -> None:
    """Claimed once, taken over only from whom it was asked for, released only by its owner; private, and nothing is left over."""
    kept, digest = Keys(str(tmp_path)), "ab" * 32
    assert kept.claim(digest, "one") is None
    assert kept.claim(digest, "two") == Owner("one")
    kept.release(digest, "two")
    kept.used(digest, 7)
    owner = kept.claim(digest, "two", "0" * 16)
    assert owner == Owner("one", None, 7)
    assert not kept.take_over(digest, Owner("one"), "two")
    assert kept.take_over(digest, owner, "two")
    assert kept.claim(digest, "three") == Owner("two")
    kept.release(digest, "two")
    assert kept.claim(digest, "three", "0" * 16) is None
    assert kept.claim(digest, "one") == Owner("three", "0" * 16)
    assert stat.S_IMODE(os.stat(kept.directory).st_mode) == 0o700
    assert {stat.S_IMODE(os.stat(Path(kept.directory, name)).st_mode) for name in os.listdir(kept.directory)} == {0o600}
    assert not [name for name in os.listdir(kept.directory) if name.endswith(".tmp")]


def test_keys_need_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that has none, a key still has one owner."""

    def link(*args: Any, **options: Any) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(system, "link", link)
    start = threading.Barrier(8)

    def claim(number: int) -> Owner | None:
        start.wait()
        return Keys(str(tmp_path)).claim("0" * 64, f"run{number}")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(claim, range(8))).count(None) == 1


def test_another_run_is_given_the_result(ledger: Ledger) -> None:
    """Over all runs of the store: the second run gets what the first one recorded, and says from where."""
    pay = once(ledger.pay, store=True)

    def program() -> Any:
        return [pay("ACME"), pay("ACME")]

    first, result = recorded(program)
    second, again = recorded(program)
    assert ledger.lines == ["ACME"]
    assert again == result
    place = {"run_id": first, "seq": of_type(first, "tool.call")[0]["seq"]}
    assert [one["meta"]["info"]["of"] for one in of_type(second, "tool.skipped")] == [place, place]
    assert [one["meta"]["info"]["duplicate_of"] for one in of_type(second, "tool.call")] == [place, place]
    for run_id in (first, second):
        assert replayed(run_id, program) == result
    assert ledger.lines == ["ACME"]


def test_another_run_is_given_the_failure(ledger: Ledger) -> None:
    """A call whose key has failed in one run is not made again by another: it gets the same failure."""

    def fails(given: Any) -> None:
        ledger.pay(given)
        raise ValueError("declined")

    pay = once(fails, store=True)
    for _ in range(2):
        with pytest.raises(ValueError, match="declined"):
            recorded(lambda: pay("ACME"))
    assert ledger.lines == ["ACME"]


class Meanwhile:
    """Another run that is in the middle of a call, in a thread, until it is let go on."""

    def __init__(self, ledger: Ledger) -> None:
        self.inside, self.told = threading.Event(), threading.Event()
        self.names: list[str] = []

        def slow(given: Any) -> Any:
            if not self.told.is_set():
                self.inside.set()
                self.told.wait()
            return ledger.pay(given)

        self.function = slow
        self.pay = once(slow, store=True)
        self.thread = threading.Thread(target=self._other)
        self.thread.start()
        self.inside.wait()

    def _other(self) -> None:
        with record("other") as run:
            self.names.append(run.id)
            self.pay("ACME")

    def let_go(self) -> None:
        self.told.set()
        self.thread.join()


def test_a_thread_with_the_number_of_an_ended_one_may_wait(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other run's call has just ended, and its thread's number is another thread's by now: that thread gets the result, too."""
    other = Meanwhile(ledger)
    real = elsewhere._reality.sleep
    results: list[Any] = []
    free = threading.Event()

    def again() -> None:
        if threading.get_ident() == other.thread.ident:
            results.append(other.pay("ACME"))
        else:
            free.wait()

    def sleep(seconds: float) -> None:
        monkeypatch.setattr(elsewhere._reality, "sleep", real)
        other.let_go()
        threads: list[threading.Thread] = []
        while other.thread.ident not in {one.ident for one in threads} and len(threads) < 100:
            threads.append(threading.Thread(target=again))
            threads[-1].start()
        free.set()
        for thread in threads:
            thread.join()

    monkeypatch.setattr(elsewhere._reality, "sleep", sleep)
    with record("this"):
        results.append(other.pay("ACME"))
    assert (len(results), len(set(map(str, results)))) == (2, 1)
    assert ledger.lines == ["ACME"]


def test_a_run_that_is_making_the_call_is_waited_for(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run's call that has not ended: waited for, then it answers, to however many; a replay does, too."""
    other = Meanwhile(ledger)
    real = elsewhere._reality.sleep
    monkeypatch.setattr(
        elsewhere._reality, "sleep", lambda seconds: (other.told.set(), real(seconds))
    )  # once it is waited for

    def program() -> Any:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(other.pay, ["ACME"] * 4))

    run_id, result = recorded(program)
    other.let_go()
    assert result == [{"paid": "ACME", "number": 1}] * 4
    assert ledger.lines == ["ACME"]
    assert replayed(run_id, program) == result
    assert ledger.lines == ["ACME"]


def test_a_loop_goes_on_while_another_run_makes_the_call(ledger: Ledger) -> None:
    """The second caller is a task: its loop runs meanwhile, and it is this loop that lets the other run end."""
    other = Meanwhile(ledger)
    pay = once_async(other.function, store=True)

    async def work() -> Any:
        waiting = asyncio.ensure_future(pay("ACME"))
        for _ in range(3):
            await asyncio.sleep(0.001)
        other.told.set()
        return await waiting

    def program() -> Any:
        return asyncio.run(work())

    run_id, result = recorded(program)
    other.let_go()
    assert result == {"paid": "ACME", "number": 1}
    assert replayed(run_id, program) == result
    assert ledger.lines == ["ACME"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_call_waits_for_another_run_as_long_as_its_own_limit(ledger: Ledger, asynchronous: bool) -> None:
    """When the tool's ``timeout_ms`` is over the call is refused, with that run's name, and nothing is called; the next one asks again."""
    other = Meanwhile(ledger)
    if asynchronous:
        call = once_async(other.function, store=True, limit_ms=10)

        def pay() -> Any:
            async def work() -> Any:
                return await call("ACME")

            return asyncio.run(work())
    else:
        limited = once(other.function, store=True, limit_ms=10)

        def pay() -> Any:
            return limited("ACME")

    def program() -> Any:
        said = _refused(pay)
        other.let_go()
        return said, pay()

    run_id, (said, again) = recorded(program)
    assert other.names[0] in said
    assert "is making this call" in said
    assert again == {"paid": "ACME", "number": 1}
    assert ledger.lines == ["ACME"]
    assert replayed(run_id, program) == (said, again)


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_makes_the_call_is_waited_for_as_long_as_it_lives(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], begun: bool
) -> None:
    """No time is too long, before the other's intent record is on its log (``begun``) and after it; stderr says who is waited for."""
    other = Meanwhile(ledger) if begun else None
    ready, go = threading.Event(), threading.Event()
    pay = once(ledger.pay, store=True) if other is None else other.pay
    names = [] if other is None else other.names

    def later() -> None:
        real = Keys.claim

        def claim(self: Keys, digest: str, run_id: str, segment: str | None = None) -> Owner | None:
            found = real(self, digest, run_id, segment)
            if threading.current_thread() is thread:
                ready.set()
                go.wait()
            return found

        with record("other") as run, monkeypatch.context() as patch:
            patch.setattr(Keys, "claim", claim)
            names.append(run.id)
            pay("ACME")

    thread = threading.Thread(target=later)
    if other is None:
        thread.start()
        ready.wait()
    looks = [0]

    def pause(seconds: float) -> None:
        looks[0] += 1
        if looks[0] == 50:
            go.set()
            if other is None:
                thread.join()
            else:
                other.let_go()

    with monkeypatch.context() as patch:
        patch.setattr(elsewhere._reality, "sleep", pause)
        patch.setattr(elsewhere._reality, "monotonic", lambda: looks[0] * 1000.0)
        _, result = recorded(lambda: pay("ACME"))
    assert looks[0] == 50
    assert result == {"paid": "ACME", "number": 1}
    assert ledger.lines == ["ACME"]
    said = [line for line in capsys.readouterr().err.splitlines() if "waits in run" in line]
    assert len(said) == 1
    assert names[0] in said[0]


def test_runs_that_wait_for_each_other_do_not_hang(ledger: Ledger) -> None:
    """Two runs, each inside a call for which the other one waits: that is found out at once, and no call is made twice."""
    both, refused = threading.Barrier(2), []

    def inside(given: Any) -> Any:
        both.wait()
        try:
            return [given, pays["b" if given == "a" else "a"](given)]
        except ContractViolationError as error:
            refused.append(str(error))
            return [given, "refused"]

    def a(given: Any) -> Any:
        return inside("a")

    def b(given: Any) -> Any:
        return inside("b")

    pays = {"a": once(a, store=True), "b": once(b, store=True)}
    pays = {name: lambda given, pay=pay: pay("same") for name, pay in pays.items()}

    def other() -> None:
        with record("other"):
            pays["b"]("b")

    thread = threading.Thread(target=other)
    thread.start()
    recorded(lambda: pays["a"]("a"))
    thread.join()
    assert refused
    assert all("waits in it for one that this one is part of" in said for said in refused)


def test_a_call_in_the_thread_that_another_run_needs_is_refused(ledger: Ledger) -> None:
    """A run of this process makes the call in a task, and a blocking call under its key in the same thread could never end."""
    began = asyncio.Event()

    async def slow(given: Any) -> Any:
        began.set()
        await asyncio.sleep(0.01)
        return ledger.pay(given)

    first = once_async(slow, store=True)
    said: list[str] = []

    async def one() -> None:
        async with record("one"):
            await first("ACME")

    async def program() -> None:
        task = asyncio.create_task(one())
        await began.wait()
        async with record("two"):
            said.append(_refused(lambda: once(slow, store=True)("ACME")))
        await task

    asyncio.run(program())
    assert "in the thread in which run" in said[0]
    assert ledger.lines == ["ACME"]


@pytest.mark.parametrize("damage", ["gone", "broken", "cut"])
def test_a_run_that_can_not_be_asked_any_more_is_not_repeated(ledger: Ledger, damage: str) -> None:
    """Deleted, damaged, or cut to before the call: refused, never silently made again."""
    pay = once(ledger.pay, store=True)
    first, _ = recorded(lambda: pay("ACME"))
    path = Path(Store().path(first))
    lines = path.read_bytes().splitlines(keepends=True)
    call = of_type(first, "tool.call")[0]["seq"]
    if damage == "gone":
        path.unlink()
    elif damage == "broken":
        path.write_bytes(b"".join(lines).replace(b"ACME", b"ACNE"))
    else:
        path.write_bytes(b"".join(lines[: call - 1]))
    _, said = recorded(lambda: _refused(lambda: pay("ACME")))
    assert first in said
    assert "it was not executed" in said
    assert ledger.lines == ["ACME"]
    path.unlink(missing_ok=True)


def test_a_key_that_can_not_be_read_is_told(ledger: Ledger) -> None:
    """A damaged key file: nobody knows whose it is, so nothing is called."""
    pay = once(ledger.pay, store=True)
    recorded(lambda: pay("ACME"))
    (key,) = Path(Store().root, "keys").iterdir()
    key.write_bytes(b"{}\n")
    with pytest.raises(Exception, match="is not a key"):
        recorded(lambda: pay("ACME"))
    assert ledger.lines == ["ACME"]


@pytest.mark.parametrize("call", ["write", "fdatasync", "fsync"])
def test_a_full_disk_stops_the_call(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """The key can't be brought to the device: no effect; once it can, the call is made, once."""
    pay = once(ledger.pay, store=True)
    root = Path(Store().root)

    def program() -> Any:
        return pay("ACME")

    recorded(lambda: None)
    Keys(str(root)).digest(b"x")
    with record("full"):
        with monkeypatch.context() as patch:
            _fail_in_keys(patch, call)
            with pytest.raises(LogWriteError, match="No space left"):
                program()
        assert ledger.lines == []
        assert program() == {"paid": "ACME", "number": 1}
    assert recorded(program)[1] == {"paid": "ACME", "number": 1}
    assert ledger.lines == ["ACME"]
    assert not [name for name in os.listdir(root / "keys") if name.endswith(".tmp")]


def _fail_in_keys(patch: pytest.MonkeyPatch, call: str) -> None:
    """Let ``call`` fail where the keys are written; the log itself is well."""

    def full(*args: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if call == "fdatasync":
        patch.setattr(keys._reality, call, full)
    else:
        patch.setattr(keys, "system", SimpleNamespace(**{**vars(system), call: full}))


@pytest.mark.parametrize("place", ["keys", "secret"])
def test_where_the_key_can_not_be_written_nothing_is_called(ledger: Ledger, place: str) -> None:
    """The effect waits for its key: no key, no effect, and the error says what to do."""
    pay = once(ledger.pay, store=True)
    root = Path(Store().root)
    root.mkdir()
    (root / place).mkdir() if place == "secret" else (root / place).write_text("in the way")
    with record("unwritable"), pytest.raises(LogWriteError, match="was not made"):
        pay("ACME")
    assert ledger.lines == []
    (root / place).rmdir() if place == "secret" else (root / place).unlink()
    recorded(lambda: pay("ACME"))
    assert ledger.lines == ["ACME"]


def _ended_in_doubt(ledger: Ledger, end: str) -> tuple[Callable[..., Any], str, int]:
    """A run that has ended, and its call under a key that may or may not have been made."""

    def slow(given: Any) -> Any:
        ledger.pay(given)
        raise StepTimeoutError("too slow", in_doubt=True)

    pay = once(slow if end == "completed" else ledger.pay, store=True)
    with record("first") as run:
        if end == "completed":
            with pytest.raises(StepTimeoutError):
                pay("ACME")
        else:
            pay("ACME")
    step = of_type(run.id, "tool.call")[0]["seq"]
    if end == "aborted":
        path = Path(run.path)
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:step]))
        (Path(Store().tips) / run.id).unlink()
        recovery.abort(run.id, reason="gone")
    return once(ledger.pay, store=True) if end == "aborted" else pay, run.id, step


@pytest.mark.parametrize("end", ["aborted", "completed"])
@pytest.mark.parametrize("done", [True, False])
def test_a_call_of_a_run_that_has_ended_can_be_settled(ledger: Ledger, end: str, done: bool) -> None:
    """Said to be done, every other run gets the output; said not to be, the next run makes it, once. The complete log is as it was."""
    pay, first, step = _ended_in_doubt(ledger, end)
    before = Path(Store().path(first)).read_bytes()
    if end == "aborted":
        with pytest.raises(ContractViolationError) as caught, record():
            pay("ACME")
        said = caught.value.__dict__["next_action"]
        assert f"tracekit recovery settle {first} {step} --done OUTPUT.json | --not-done --reason TEXT" in said
    told: dict[str, Any] = {"output": {"paid": "by hand"}} if done else {"not_done": True}
    assert recovery.settle(first, step, reason="asked the bank", by="ann", **told) == 0
    assert Path(Store().path(first)).read_bytes() == before
    assert Store().verify(first).state == "complete"
    with pytest.raises(RecoveryRefusedError, match="settled before"):
        recovery.settle(first, step, reason="again", **told)
    pay = once(ledger.pay, store=True) if end == "aborted" else _named(pay, ledger)
    made = len(ledger.lines)

    def program() -> Any:
        return [pay("ACME"), pay("ACME")]

    second, result = recorded(program)
    third, again = recorded(program)
    assert again == result
    assert len(ledger.lines) == made + (not done)
    assert result[0] == ({"paid": "by hand"} if done else {"paid": "ACME", "number": made + 1})
    for run_id in (second, third):
        assert replayed(run_id, program) == result
    assert len(ledger.lines) == made + (not done)


def _named(pay: Callable[..., Any], ledger: Ledger) -> Callable[..., Any]:
    """The same tool, as it is called when the other side answers in time."""

    def slow(given: Any) -> Any:
        return ledger.pay(given)

    slow.__qualname__ = _ended_in_doubt.__qualname__ + ".<locals>.slow"
    return once(slow, store=True)


def test_a_settlement_is_of_one_call_of_one_run(ledger: Ledger) -> None:
    """Of another run, or of a step that has its outcome, nothing can be said; and what is damaged answers nobody."""
    pay, first, step = _ended_in_doubt(ledger, "aborted")
    recovery.settle(first, step, not_done=True, reason="asked the bank")
    second, _ = recorded(lambda: pay("ACME"))
    made = of_type(second, "tool.call")[0]["seq"]
    for run_id, seq in ((second, made), (first, step), (first, step + 1)):
        with pytest.raises(RecoveryRefusedError):
            recovery.settle(run_id, seq, output=1, reason="x")
    (said,) = (Path(Store().root) / "keys").glob("*.settled")
    assert json.loads(said.read_bytes())["run_id"] == first
    recorded(lambda: pay("ACME"))
    for text, what in (("{", "it is not JSON"), ("{}", "it has no 'run_id'")):
        said.write_text(text)
        _, refusal = recorded(lambda: _refused(lambda: pay("ACME")))
        assert "it was not executed" in refusal
        assert what in refusal
    assert len(ledger.lines) == 2


# -- what was undone ---------------------------------------------------------------------------------------------------------


class Bookings:
    """A tool that happens once and can be undone; ``busy``: its first call fails, is undone, and another tool stands in."""

    def __init__(self, ledger: Ledger, where: Any, *, busy: bool = False, undoable: bool = True) -> None:
        @traced_tool(side_effect="reversible")
        def unbook(key: str) -> None:
            ledger.pay(f"unbook {key}")
            if not undoable:
                raise ConnectionError("no answer")

        @traced_tool(side_effect="reversible")
        def wait_list(key: str) -> int:
            return 0

        @traced_tool(
            side_effect="reversible",
            exactly_once=where,
            idempotency_key="key",
            compensate=unbook,
            fallback=wait_list,
        )
        def book(key: str) -> int:
            number: int = ledger.pay(f"book {key}")["number"]
            if busy and number == 1:
                raise ConnectionError("busy")
            return number

        self.book = book


@pytest.mark.parametrize("where", [True, "store"])
def test_a_call_that_was_undone_is_made_again(ledger: Ledger, where: Any) -> None:
    """Undone in the same run: its result is none any more, and the next call under the key is made; a replay does the same."""
    bookings = Bookings(ledger, where, busy=True)

    def program() -> Any:
        return [bookings.book("K1") for _ in range(3)]

    run_id, found = recorded(program)
    assert found == [0, 3, 3]
    assert ledger.lines == ["book K1", "unbook K1", "book K1"]
    assert replayed(run_id, program) == found
    assert ledger.lines == ["book K1", "unbook K1", "book K1"]


def test_a_call_that_another_run_has_undone_is_made_again(ledger: Ledger) -> None:
    """Over the whole store: what one run made and undid the next one makes, and answers from then on."""
    bookings = Bookings(ledger, "store")
    with record("first") as run:
        bookings.book("K1")
        run.abort("changed my mind")
    for _ in range(2):
        run_id, number = recorded(lambda: bookings.book("K1"))
        assert number == 3
        assert replayed(run_id, lambda: bookings.book("K1")) == 3
    assert ledger.lines == ["book K1", "unbook K1", "book K1"]


@pytest.mark.parametrize("where", [True, "store"])
def test_a_call_whose_undoing_failed_is_in_doubt(ledger: Ledger, where: Any) -> None:
    """Neither its result nor another call: whether it still stands is not known, in its run and in the next."""
    bookings = Bookings(ledger, where, busy=True, undoable=False)

    def program() -> str:
        with suppress(ConnectionError):
            bookings.book("K1")
        return _refused(lambda: bookings.book("K1"))

    run_id, said = recorded(program)
    assert "compensation" in said
    assert replayed(run_id, program) == said
    if where == "store":
        assert "compensation" in recorded(lambda: _refused(lambda: bookings.book("K1")))[1]
    assert ledger.lines == ["book K1", "unbook K1"]


# -- a store that has lost something -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["is missing", "is another one"])
def test_keys_without_their_secret_are_told(ledger: Ledger, how: str) -> None:
    """Under another secret every key would be a new one: no call is made, and the error names the file to bring back."""
    pay = once(ledger.pay, store=True)
    recorded(lambda: pay("ACME"))
    secret = Path(Store().root, "secret")
    kept = secret.read_bytes()
    secret.unlink()
    if how == "is another one":
        secret.write_bytes(b"x" * 32)
    run_id, said = recorded(lambda: _refused(lambda: pay("ACME")))
    assert f"{secret} {how}" in said
    assert replayed(run_id, lambda: _refused(lambda: pay("ACME"))) == said
    secret.write_bytes(kept)
    assert recorded(lambda: pay("ACME"))[1]["number"] == 1
    assert ledger.lines == ["ACME"]


# -- budgets -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [True, "store"])
def test_an_answered_call_is_none_of_a_budget(ledger: Ledger, where: Any) -> None:
    """What an earlier call answers is neither counted nor refused, not even when nothing is left; a new key is refused, and free
    for whoever may make it."""

    @traced_tool(side_effect="irreversible", exactly_once=where)
    def pay(given: str) -> int:
        number: int = ledger.pay(given)["number"]
        return number

    def program() -> Any:
        found: list[Any] = [pay("a"), pay("a")]
        for given in ("b", "a", "b"):
            try:
                found.append(pay(given))
            except BudgetExceededError as error:
                found.append(error.resource)
        return found

    with pytest.warns(RuntimeWarning, match="budget"), record("eo", budget=Budget(tool_calls=1)) as run:
        found = program()
    assert found == [1, 1, "tool_calls", 1, "tool_calls"]
    assert ledger.lines == ["a"]
    assert replayed(run.id, program) == found
    assert recorded(lambda: pay("b"))[1] == 2
    assert ledger.lines == ["a", "b"]


EQUAL = {
    "numbers": ({1: 5, 2: 7}, {2: 7, 1: 5}),
    "inside": ([{(1, 2): "a", (3,): "b"}], [{(3,): "b", (1, 2): "a"}]),
    "dollars": ({"$a": 1, "b": 2}, {"b": 2, "$a": 1}),
    "counters": (Counter("aab"), Counter("baa")),
    "defaults": (defaultdict(int, a=1, b=2), defaultdict(int, b=2, a=1)),
}


@pytest.mark.parametrize("where", [True, "store"])
@pytest.mark.parametrize("kind", EQUAL)
def test_equal_dictionaries_are_one_call(ledger: Ledger, kind: str, where: Any) -> None:
    """The order in which a dictionary has its items makes no other call, whatever its keys are."""

    @traced_tool(side_effect="irreversible", exactly_once=where)
    def pay(given: Any) -> int:
        number: int = ledger.pay(given)["number"]
        return number

    one, other = EQUAL[kind]
    assert one == other
    with record("eo") as run:
        assert [pay(one), pay(other)] == [1, 1]
    assert len(ledger.lines) == 1
    assert replayed(run.id, lambda: [pay(one), pay(other)]) == [1, 1]


INTERRUPTED_ANYWHERE = """
import sys, threading, warnings
from tracekit import record, traced_tool

warnings.simplefilter("ignore")
effects = []

@traced_tool(side_effect="irreversible", name="pay", exactly_once=True)
def pay(n):
    effects.append(n)

class Interrupter:  # like a signal handler: at the first line of these modules that was not seen before
    seen = set()

    def __init__(self):
        self.where = None

    def __call__(self, frame, event, arg):
        name, code = frame.f_code.co_filename, frame.f_code.co_name
        ours = name.endswith(("/_policy/once.py", "/_capture/contracted.py")) and code not in ("__del__", "pending")
        return self.at if ours else None

    def at(self, frame, event, arg):
        place = frame.f_code, frame.f_lineno
        if event == "line" and self.where is None and place not in self.seen:
            self.seen.add(place)
            self.where = frame.f_code.co_qualname, frame.f_lineno
            sys.settrace(None)
            raise KeyboardInterrupt
        return self.at

def again(n):
    try:
        pay(n)
    except Exception:
        pass

wrong = []
with record("job"):
    for n in range(10_000):
        interrupter = Interrupter()
        sys.settrace(interrupter)
        try:
            pay(n)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        if interrupter.where is None:
            break
        other = threading.Thread(target=again, args=(n,), daemon=True)
        other.start()
        other.join(60)
        if other.is_alive():
            wrong.append(("waits for ever", interrupter.where))
            break
        if effects.count(n) > 1:
            wrong.append(("twice", interrupter.where))
print(n > 100, wrong)
"""


def test_an_interrupted_call_is_neither_repeated_nor_waited_for(tmp_path: Path) -> None:
    """Wherever Ctrl-C comes in it, a later call under its key in another thread ends, and the effect is there at most once."""
    done = python("-c", INTERRUPTED_ANYWHERE, cwd=tmp_path, timeout=250, fresh=True)
    assert (done.returncode, done.stdout) == (0, "True []\n"), done.stderr
