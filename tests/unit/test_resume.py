"""Resuming: whatever the log has is answered from it, nothing else happens before it has been followed, and then the run goes on."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.support.cut import cut, lines
from tests.support.tracing import entries, of_type
from tracekit import record, recovery, replay, resume, traced, traced_tool

#: What really happened, by tool and argument.
done: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


@traced_tool(side_effect="read_only")
def look(n: int) -> float:
    done[f"look {n}"] += 1
    return random.random()


@traced_tool(side_effect="reversible")
def put(n: int) -> str:
    done[f"put {n}"] += 1
    return f"put {n}"


@traced_tool(side_effect="irreversible")
def pay(n: int) -> str:
    done[f"pay {n}"] += 1
    return f"paid {n}"


@traced_tool(side_effect="read_only")
async def ask(n: int, pauses: int = 1) -> float:
    done[f"ask {n}"] += 1
    for _ in range(pauses):
        await asyncio.sleep(0.001)
    return random.random()


@traced_tool(side_effect="irreversible")
async def send(n: int) -> str:
    done[f"send {n}"] += 1
    await asyncio.sleep(0.001)
    return f"sent {n}"


@traced_tool(side_effect="read_only")
def words(n: int) -> Iterator[str]:
    done[f"words {n}"] += 1
    for i in range(3):
        yield f"{n}.{i}"


# -- programs --------------------------------------------------------------------------------------------------------------


def straight() -> Any:
    """Every kind of entry, one after the other."""
    said: list[Any] = []
    for n in range(2):
        said += [look(n), time.monotonic(), random.random(), put(n)]
        with tracekit.agent("payer"):
            said.append(pay(n))
        tracekit.decision("next", input=n, output=said[-1])
        time.sleep(0.001)
    return said


def nested() -> Any:
    """Spans around steps, and a step inside a step."""

    @traced_tool(side_effect="reversible", name="outer")
    def outer(n: int) -> list[Any]:
        done[f"outer {n}"] += 1
        return [look(n), put(n)]

    @traced("plan")
    def plan(n: int) -> list[Any]:
        return [*outer(n), look(n + 10)]

    @traced("whole")
    def whole() -> list[Any]:
        return [plan(1), pay(1), plan(2)]

    return whole()


def streaming() -> Any:
    return [[*words(1)], pay(1), [*words(2)]]


def tasks() -> Any:
    """Tasks at once, a race against a deadline, and order of completion."""

    async def branch(n: int) -> Any:
        first = await ask(n, n)
        return first, await send(n), await ask(n + 10)

    async def main() -> Any:
        together = await asyncio.gather(*(branch(n) for n in range(3)))
        first = [await one for one in asyncio.as_completed([ask(20, 3), ask(21, 1)])]
        try:
            await asyncio.wait_for(asyncio.sleep(30), 0.002)
        except TimeoutError:
            together.append(("late", look(9), ""))
        await asyncio.sleep(0.001)
        return together, first, pay(9)

    return asyncio.run(main())


def threads() -> Any:
    """A pool whose calls hold on to their lanes, and a thread that waits for another."""
    ready = threading.Event()

    def branch(n: int) -> Any:
        return look(n), put(n), pay(n)

    def last() -> None:
        ready.wait(5)
        pay(100)

    thread = threading.Thread(target=last)
    thread.start()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(branch, range(3)))
    ready.set()
    thread.join()
    return found, look(50)


PROGRAMS = [straight, nested, streaming, tasks, threads]


def effects(kind: str) -> dict[str, int]:
    return {name: count for name, count in done.items() if name.startswith(kind)}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_a_run_cut_off_at_any_entry(program: Callable[[], Any], tmp_path: Path) -> None:
    """Cut off after each of its entries, a run is refused or goes on to its end; nothing that was finished is made again, nothing
    irreversible twice, and what comes of it replays exactly."""
    with record("cut") as run:
        run.set_result(program())
    whole = entries(run)
    resumed = 0
    for count in range(1, len(whole) + 1):
        done.clear()
        path = cut(run, count, tmp_path / str(count))
        [decision] = recovery.scan(tmp_path / str(count)) if count < len(whole) else [None]
        begun = {e["seq"]: e for e in whole[:count] if e["type"] == "tool.call"}
        ended = {e["step"] for e in whole[:count] if e["type"] in ("tool.return", "tool.error")}
        pending = [e for seq, e in begun.items() if seq not in ended]
        doubtful = any(e["meta"]["side_effect"] == "irreversible" for e in pending)
        if decision is None or decision.decision == "abort":
            assert decision is None or doubtful, decision.reasons
            with pytest.raises(tracekit.RecoveryRefusedError), resume(path, store=tmp_path / str(count)):
                program()
            assert not done
            continue
        assert not doubtful
        with resume(path, store=tmp_path / str(count)) as again:
            again.set_result(program())
        resumed += 1
        expected = Counter(_effect(e) for e in whole if e["type"] == "tool.call" and not _inside_done(e, begun, ended))
        expected -= Counter(_effect(e) for seq, e in begun.items() if seq in ended and not _again(e, pending, whole))
        assert +done == +expected, (count, whole[count - 1])
        made = dict(done)
        with replay(path, store=tmp_path / str(count)) as session:
            program()
        assert session.report.exact, (count, session.report.as_dict())
        assert done == made
        types = [entry["type"] for entry in entries(path)]
        assert types[-2:] == ["recovery.completed", "run.completed"]
        assert types.count("recovery.started") == 1
        with pytest.raises(tracekit.RecoveryRefusedError, match="has ended"), resume(path, store=tmp_path / str(count)):
            program()
    assert resumed > len(whole) // 3


def _effect(entry: dict[str, Any]) -> str:
    return f"{entry['name'].rpartition('.')[2]} {entry['input']['n']}"


def _inside_done(entry: dict[str, Any], begun: dict[int, Any], ended: set[int]) -> bool:
    """Whether a step happened in one that is answered from the log."""
    parent = entry.get("parent", 0)
    return parent in begun and parent in ended


def _again(entry: dict[str, Any], pending: list[dict[str, Any]], whole: list[dict[str, Any]]) -> bool:
    """Whether a step is inside one that is made again, and is so with it."""
    return any(entry.get("parent") == one["seq"] for one in pending)


def test_a_torn_line_is_cut_and_kept(tmp_path: Path) -> None:
    """Half a line at the end is cut off when the run goes on, and kept beside the file."""
    with record("torn") as run:
        run.set_result(straight())
    store = tmp_path / "torn"
    path = cut(run, 5, store, torn=40)
    done.clear()
    with resume(path, store=store):
        straight()
    [kept] = store.glob("runs/*.cut-*")
    assert kept.read_bytes() == lines(run)[5][:40]
    [started] = of_type(path, "recovery.started")
    assert started["meta"]["cut_bytes"] == 40
    with replay(path, store=store) as session:
        straight()
    assert session.report.exact


def test_a_clock_that_began_anew_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A monotonic clock never goes back, though that of this process began later than the one in the log."""
    with record("clock") as run:
        first = (time.monotonic(), look(1), time.monotonic(), look(2))
    store = tmp_path / "clock"
    path = cut(run, 5, store)
    far = Path(path).read_bytes()
    assert far
    with resume(path, store=store):
        again = (time.monotonic(), look(1), time.monotonic(), look(2))
    assert again[:2] == first[:2]
    assert again[2] >= again[0]


def test_code_that_does_not_follow_its_log_is_noticed_in_time(tmp_path: Path) -> None:
    """A program that makes another step, or leaves one out, is told before anything is live; the file is as it was."""
    with record("changed") as run:
        straight()
    store = tmp_path / "changed"
    path = cut(run, len(lines(run)) - 3, store)
    before = Path(path).read_bytes()
    done.clear()

    def another() -> None:
        look(0)
        time.monotonic()
        random.random()
        put(7)
        pay(7)

    def shorter() -> None:
        look(0)
        time.monotonic()
        random.random()

    def other_order() -> None:
        look(0)
        time.monotonic()
        random.random()
        pay(0)

    for program in (another, shorter, other_order):
        with pytest.raises(tracekit.ReplayError), resume(path, store=store):
            program()
        assert Path(path).read_bytes() == before
        assert not done
    with resume(path, store=store):
        straight()


def test_what_is_outside_the_log_is_not_reached_before_its_end(tmp_path: Path) -> None:
    """A connection that is not captured is refused while the log is followed, and a tool called outside the run, too."""
    import socket

    with record("guarded") as run:
        look(1), look(2)
    store = tmp_path / "guarded"
    path = cut(run, 3, store)

    def reaching() -> None:
        socket.create_connection(("127.0.0.1", 9))

    with pytest.raises(tracekit.LiveCallBlockedError), resume(path, store=store):
        reaching()
    thread: list[threading.Thread] = []

    def lost() -> None:
        one = threading.Thread(target=lambda: Context().run(pay, 5))
        thread.append(one)
        one.start()
        one.join()
        look(1)

    done.clear()
    with pytest.raises(tracekit.LiveCallBlockedError), resume(path, store=store):
        lost()
    assert not done


def test_a_process_before_the_end_of_the_log_is_a_step_that_it_lacks(tmp_path: Path) -> None:
    """No process is started while the log is followed: one that the recorded program had not started there is a divergence."""
    import subprocess

    with record("starting") as run:
        look(1), look(2)
    started = tmp_path / "started"
    with (
        pytest.raises(tracekit.DivergenceError, match=r"the program reaches a later step, and tool\.call 'look'"),
        resume(cut(run, 3, tmp_path / "store"), store=tmp_path / "store"),
    ):
        subprocess.run(["touch", str(started)], check=True)
    assert not started.exists()


def forked(started: Path) -> None:
    if not os.fork():
        started.touch()
        os._exit(0)


def test_a_process_before_the_end_of_the_log_is_refused_by_what_helps(tmp_path: Path) -> None:
    """Nor is one that is not captured; no option of a resumption would allow it, and none is advised."""
    with record("starting") as run:
        look(1), look(2)
    started = tmp_path / "started"
    with (
        pytest.raises(tracekit.LiveCallBlockedError) as caught,
        resume(cut(run, 3, tmp_path / "store"), store=tmp_path / "store"),
    ):
        forked(started)
    assert "a resumed run can't start processes before it has reached the end of its log" in str(caught.value)
    assert "guard" not in str(caught.value)
    assert not started.exists()


def test_resumed_again_after_another_crash(tmp_path: Path) -> None:
    """A resumed run that is cut off goes on again, as often as it takes."""
    with record("often") as run:
        straight()
    store, path = tmp_path / "0", ""
    path = cut(run, 4, store)
    done.clear()
    for cycle in range(1, 6):
        with resume(path, store=store) as again:
            straight()
        following = tmp_path / str(cycle)
        count = min(len(lines(again)) - 3, 4 + 6 * cycle)
        while entries(path)[count - 1]["type"] in ("tool.call", "recovery.completed", "run.completed"):
            count -= 1
        path, store = cut(again, count, following), following
    with resume(path, store=store):
        straight()
    with replay(path, store=store) as session:
        straight()
    assert session.report.exact
    assert len(of_type(path, "recovery.started")) >= 2


def test_two_at_once(tmp_path: Path) -> None:
    """While a run goes on in one place, it is refused in another, which says who has it."""
    with record("two") as run:
        straight()
    store = tmp_path / "two"
    path = cut(run, 4, store)
    with resume(path, store=store):
        with pytest.raises(tracekit.RecoveryRefusedError, match="still runs it") as caught:
            _in_another_context(lambda: resume(path, store=store).__enter__())
        assert caught.value.reasons[0]["code"] == "held"  # type: ignore[attr-defined]
        straight()


def _in_another_context(call: Callable[[], Any]) -> Any:
    return Context().run(call)


def test_a_failed_run_is_finished(tmp_path: Path) -> None:
    """A program that fails after it went live ends its run as failed; one that fails before leaves it as it was."""
    with record("fails") as run:
        straight()
    store = tmp_path / "fails"
    path = cut(run, 4, store)
    before = Path(path).read_bytes()
    with pytest.raises(KeyError), resume(path, store=store):
        raise KeyError("at once")
    assert Path(path).read_bytes() == before

    def failing() -> None:
        straight()
        raise KeyError("at the end")

    with pytest.raises(KeyError), resume(path, store=store):
        failing()
    assert [entry["type"] for entry in entries(path)][-2:] == ["recovery.completed", "run.failed"]
    with pytest.raises(KeyError), replay(path, store=store) as session:
        failing()
    assert session.report.exact


def test_a_redacted_output_is_supplied_or_refused(tmp_path: Path) -> None:
    """A step whose output the log does not have can't answer the program: the operator supplies it, and it never enters the log."""
    secret = "sk-proj-" + "a1B2" * 12

    @traced_tool(side_effect="read_only")
    def fetch() -> str:
        done["fetch"] += 1
        return secret

    seen = []

    def program() -> None:
        seen.append(fetch())
        pay(1)

    with pytest.warns(RuntimeWarning, match="redacted"), record("secret") as run:
        program()
    store = tmp_path / "secret"
    path = cut(run, 3, store)
    with pytest.raises(tracekit.RecoveryRefusedError) as caught, resume(path, store=store):
        program()
    assert caught.value.reasons[0]["code"] == "redacted_output"  # type: ignore[attr-defined]
    done.clear()
    with resume(path, store=store, supply={2: secret}):
        program()
    assert seen[-1] == secret
    assert done == {"pay 1": 1}
    assert secret.encode() not in Path(path).read_bytes()


def test_what_the_log_has_is_not_overruled(tmp_path: Path) -> None:
    """Only an output that is missing may be supplied: another step's, or a step's that there is not, is refused before anything runs."""
    secret = "sk-proj-" + "a1B2" * 12

    @traced_tool(side_effect="read_only")
    def fetch() -> str:
        return secret

    def program() -> None:
        look(1)
        fetch()
        pay(1)

    with pytest.warns(RuntimeWarning, match="redacted"), record("secret") as run:
        program()
    store = tmp_path / "secret"
    path = cut(run, 5, store)
    before = Path(path).read_bytes()
    done.clear()
    for wrong in (2, 3, 77):
        with (
            pytest.raises(tracekit.RecoveryRefusedError) as caught,
            resume(path, store=store, supply={4: secret, wrong: 1}),
        ):
            program()
        assert [one["code"] for one in caught.value.reasons if one.get("step") == wrong] == ["not_to_supply"]  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="'4'"):
        resume(path, store=store, supply={"4": secret})  # type: ignore[dict-item]
    assert not done
    assert Path(path).read_bytes() == before
    with resume(path, store=store, supply={4: secret}):
        program()
    assert done == {"pay 1": 1}


@traced_tool(side_effect="irreversible")
def send_all(names: list[str]) -> Iterator[str]:
    for name in names:
        done[f"sent {name}"] += 1
        yield name


@traced_tool(side_effect="irreversible")
async def send_all_later(names: list[str]) -> Any:
    for name in names:
        done[f"sent {name}"] += 1
        await asyncio.sleep(0)
        yield name


@pytest.mark.parametrize("pieces", [0, 1])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_generator_is_settled_with_all_its_items(tmp_path: Path, pieces: int, asynchronous: bool) -> None:
    """Those that the log has come first; the program is given the rest from the settlement, in the resumed run and in its replay."""
    names = ["ann", "bob", "cyd"]

    async def collect() -> list[str]:
        return [name async for name in send_all_later(names)]

    def program() -> list[str]:
        sent = asyncio.run(collect()) if asynchronous else list(send_all(names))
        pay(len(sent))
        return sent

    with record("mail") as run:
        program()
    store = tmp_path / "mail"
    first = next(e["seq"] for e in entries(run) if e["type"] == "tool.call")
    path = cut(run, first + pieces, store)
    done.clear()
    if pieces:
        for wrong in ("all", ["bob", "ann", "cyd"], []):
            with pytest.raises(ValueError, match="all its items"):
                recovery.settle(path, first, output=wrong, reason="they were sent", store=store)
    recovery.settle(path, first, output=names, reason="they were sent", store=store)
    with resume(path, store=store):
        assert program() == names
    assert done == {"pay 3": 1}
    with replay(path, store=store) as session:
        assert program() == names
    assert done == {"pay 3": 1}
    assert session.report.failure is None


def test_a_settlement_may_be_corrected(tmp_path: Path) -> None:
    """As long as nothing was done since: a value that no program can be given, or one that was not meant, is no dead end."""

    def program() -> None:
        pay(1)
        pay(2)

    with record("pay") as run:
        program()
    store = tmp_path / "pay"
    path = cut(run, 2, store)
    done.clear()
    for not_done in (False, True, False):
        given: dict[str, Any] = {"not_done": True} if not_done else {"output": "paid before"}
        recovery.settle(path, 2, reason="seen", store=store, **given)
    with resume(path, store=store):
        program()
    assert done == {"pay 2": 1}
    with replay(path, store=store):
        program()
    path = cut(run, 2, tmp_path / "other")
    recovery.settle(path, 2, output=1, reason="seen", store=tmp_path / "other")
    recovery.settle(path, 2, not_done=True, reason="it was not", store=tmp_path / "other")
    done.clear()
    with resume(path, store=tmp_path / "other"):
        program()
    assert done == {"pay 1": 1, "pay 2": 1}
    with replay(path, store=tmp_path / "other"):
        program()
    assert done == {"pay 1": 1, "pay 2": 1}


def test_decorated_and_async(tmp_path: Path) -> None:
    """``resume`` is a decorator and an async block as well."""

    async def program() -> str:
        await ask(1)
        return await send(1)

    async def recorded() -> Any:
        async with record("async") as run:
            await program()
        return run

    run = asyncio.run(recorded())
    for n in (2, 3):
        store = tmp_path / str(n)
        path = cut(run, n, store)
        done.clear()

        async def again(path: str = path, store: Path = store) -> None:
            async with resume(path, store=store):
                await program()

        asyncio.run(again()) if n == 2 else asyncio.run(resume(path, store=store)(program)())
        assert done["send 1"] == 1


def test_what_was_cut_off_is_undone_first_and_once(tmp_path: Path) -> None:
    """A reversible step with a compensation is undone before it is made again, once over any number of recoveries; it replays."""

    def unbook(n: int) -> None:
        done[f"unbook {n}"] += 1

    @traced_tool(side_effect="reversible", compensate=unbook)
    def book(n: int) -> str:
        done[f"book {n}"] += 1
        return f"booked {n}"

    @traced_tool(side_effect="reversible", compensate=unbook)
    async def book_later(n: int) -> str:
        done[f"book {n}"] += 1
        await asyncio.sleep(0.001)
        return f"booked {n}"

    def program() -> Any:
        return look(0), book(1), asyncio.run(book_later(2)), pay(3)

    with record("undone") as run:
        program()
    for name, of in (("book", 1), ("book_later", 2)):
        begun = next(e["seq"] for e in entries(run) if e["type"] == "tool.call" and e["name"].endswith(name))
        path = cut(run, begun, tmp_path / name)
        done.clear()
        with resume(path, store=tmp_path / name) as again:
            program()
        assert (done[f"unbook {of}"], done[f"book {of}"], done["pay 3"]) == (1, 1, 1)
        for count in range(begun + 1, len(lines(again))):
            store = tmp_path / f"{name}-{count}"
            following = cut(again, count, store)
            [decision] = recovery.scan(store)
            last = entries(following)[-1]
            if decision.decision == "abort":
                assert last["type"] == "tool.call", last
                continue
            done.clear()
            with resume(following, store=store):
                program()
            cut_off_again = last["type"] == "tool.call" and last["name"].endswith(name)
            assert done[f"unbook {of}"] == int(count < _seq_of_compensation(again) or cut_off_again), (count, last)
            with replay(following, store=store) as session:
                program()
            assert session.report.exact
        done.clear()
        with replay(path, store=tmp_path / name) as session:
            program()
        assert session.report.exact
        assert not done


def _seq_of_compensation(run: Any) -> int:
    return int(next(e["seq"] for e in entries(run) if "compensates" in (e.get("meta", {}).get("info") or {})))


def test_a_call_that_does_not_await_waits_for_the_other_tasks(tmp_path: Path) -> None:
    """A plain function that goes live inside a coroutine lets the other tasks make their recorded steps first; so does a change
    in one of them keep it from happening."""

    @traced_tool(side_effect="read_only")
    async def spin(n: int, rounds: int) -> int:
        done[f"spin {n}"] += 1
        for _ in range(rounds):
            await asyncio.sleep(0)
        return n

    async def one() -> str:
        await spin(0, 1)
        for _ in range(60):
            await asyncio.sleep(0)
        return pay(0)

    async def other(last: int) -> tuple[int, str]:
        await spin(1, 20)
        return await spin(last, 200), pay(last)

    def program(last: int = 11) -> Any:
        async def main() -> Any:
            return await asyncio.gather(one(), other(last))

        return asyncio.run(main())

    with record("beside") as run:
        first = program()
    whole = entries(run)
    count = next(e["seq"] for e in whole if e["type"] == "tool.call" and e["input"].get("n") == 11)
    assert not any(e["name"] == "pay" for e in whole[:count] if e["type"] == "tool.call")
    path = cut(run, count, tmp_path / "changed")
    done.clear()
    with pytest.raises(tracekit.ReplayError), resume(path, store=tmp_path / "changed"):
        program(12)
    assert not done
    path = cut(run, count, tmp_path / "same")
    with resume(path, store=tmp_path / "same"):
        assert program() == first
    assert done == {"spin 11": 1, "pay 0": 1, "pay 11": 1}
    with replay(path, store=tmp_path / "same") as session:
        program()
    assert session.report.exact


@pytest.mark.parametrize("way", ["task", "thread"])
def test_what_goes_live_comes_after_all_that_the_log_has(way: str, tmp_path: Path) -> None:
    """A call that was cut off is made again when the others have got what the log has for them, and not in between: the log says so."""
    hold = threading.Event()

    @traced_tool(side_effect="read_only")
    async def long(n: int) -> int:
        done[f"long {n}"] += 1
        while not hold.is_set():
            await asyncio.sleep(0.001)
        return n

    @traced_tool(side_effect="read_only")
    def long_in_thread(n: int) -> int:
        done[f"long {n}"] += 1
        hold.wait(60)
        return n

    @traced_tool(side_effect="read_only")
    async def meanwhile(n: int) -> int:
        while not done["long 0"]:  # else the log might be cut before the other call
            await asyncio.sleep(0.001)
        return n

    def program() -> list[str]:
        said: list[str] = []

        async def one() -> None:
            await (long(0) if way == "task" else asyncio.to_thread(long_in_thread, 0))
            said.append("long")

        async def other() -> None:
            await meanwhile(1)
            said.append("ask")
            hold.set()

        async def main() -> None:
            await asyncio.gather(other(), one())

        asyncio.run(main())
        return said

    with record("beside") as run:
        assert program() == ["ask", "long"]
    hold.set()
    ended = of_type(run, "tool.return")[0]["seq"]
    store = tmp_path / "once"
    cut(run, ended, store)
    for then in ("twice", None):
        done.clear()
        with resume("last", store=store) as again:
            resumed = program()
        assert done == {"long 0": 1}
        with replay("last", store=store) as session:
            assert program() == resumed
        assert session.report.exact
        if then is not None:  # killed again just before the call is begun once more
            given_up = next(e["seq"] for e in entries(again) if e["type"] == "tool.skipped")
            store = tmp_path / then
            cut(again, given_up, store)


def test_what_is_late_is_written_although_its_writing_was_interrupted(tmp_path: Path) -> None:
    """Wherever ``KeyboardInterrupt`` comes when the log has been followed to its end: what the program has read since is in the
    log, up to the one thing that was just being written."""

    @traced_tool(side_effect="read_only")
    def look(what: str) -> str:
        return what

    def program(handler: Callable[..., object] | None = None) -> None:
        look("before")
        for _ in range(5):
            random.random()
        sys.setprofile(handler)
        try:
            look("after")
        except KeyboardInterrupt:
            look("after")
        finally:
            sys.setprofile(None)

    n, left, found = 0, 0, set()
    while left <= 0:
        n, left = n + 1, n + 1

        def interrupts(frame: Any, event: str, arg: object) -> None:
            nonlocal left
            if event in ("call", "c_return") and frame.f_code.co_filename.endswith("resumer.py"):
                left -= 1
                if not left:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        with record("late", store=tmp_path / f"recorded {n}") as run:
            program()
        (last,) = [entry["seq"] for entry in of_type(run, "tool.return") if entry["output"] == "before"]
        with resume(cut(run, last, tmp_path / f"cut {n}"), store=tmp_path / f"cut {n}") as resumed:
            program(interrupts)
        drawn = [value for entry in of_type(resumed, "random") for value in entry["values"]]
        assert len(drawn) >= 4, n
        assert len(of_type(resumed, "recovery.started")) == 1
        found.add(len(drawn))
    assert n > 20
    assert found == {4, 5}


class _Proxy:
    """What a framework puts in place of an object that it has not loaded, and now can't load."""

    @property
    def __class__(self) -> type:
        raise LookupError("outside of a request")


def test_a_call_with_an_argument_that_shows_no_class_is_made(tmp_path: Path) -> None:
    """Nobody asks a proxy for what is behind it in order to record a call."""

    @traced_tool(side_effect="irreversible")
    def given(what: object) -> int:
        return 2

    with record("proxies", store=tmp_path) as run:
        assert given(_Proxy()) == given([_Proxy()]) == 2
    with replay(run) as session:
        assert given(_Proxy()) == given([_Proxy()]) == 2
    assert session.report.exact
