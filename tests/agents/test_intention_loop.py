"""The loop: nothing stays pending without a word, answers come in the order of the log, and a replay or resumption does nothing twice."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.cut import cut, lines
from tests.support.stub_provider import stub_provider
from tests.support.tracing import both, of_type, recorded, replayed
from tracekit import (
    Budget,
    BudgetExceededError,
    DivergenceError,
    Price,
    RecoveryRefusedError,
    Run,
    record,
    replay,
    resume,
    traced_tool,
)
from tracekit.agents import (
    Intention,
    IntentionEvent,
    LLMExecutor,
    Loop,
    LoopResult,
    ToolExecutor,
    World,
    ask,
    call,
    create,
    events,
    ordered,
    patch,
    pending_requests,
    responder,
)
from tracekit.errors import IntentionError, PendingRequestsError, RunStateError, UnknownObjectError, UnreadEventsError


class Models:
    """Models that count what they are asked, and give an answer that no other call gets."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._lock = threading.Lock()

    def say(self, messages: Any, **rest: Any) -> dict[str, Any]:
        question = messages[-1]["content"]
        with self._lock:
            self.asked.append(question)
        return {"text": f"{question}: {random.SystemRandom().random()}", "cost_usd": 0.5}

    async def say_late(self, messages: Any, **rest: Any) -> dict[str, Any]:
        for _ in range(random.SystemRandom().randrange(1, 6)):
            await asyncio.sleep(0)
        return self.say(messages)


@pytest.fixture
def models() -> Iterator[Models]:
    return Models()


@responder("object.created")
def want(event: IntentionEvent, world: World) -> Intention:
    assert event.object is not None
    return ask(f"about {world[event.object]['url']}", model="small", object=event.object)


@responder("llm.response")
def note(event: IntentionEvent, world: World) -> Intention | list[Intention]:
    assert event.object is not None
    if "text" in world[event.object]:
        return patch(event.object, {"more": event.text, "status": "done"})
    return [patch(event.object, {"text": event.text}), ask(f"more on {event.object}", object=event.object)]


def pages(count: int) -> list[Intention]:
    return [create(f"page-{n}", {"url": f"{n}.html", "status": "new"}) for n in range(count)]


def told(outcome: LoopResult) -> Any:
    """What a program came to, to be compared."""
    return (
        outcome.world.as_dict(),
        outcome.hash,
        [(event.kind, event.ref, event.cause, dict(event.data)) for event in outcome.events],
    )


SHAPES = ["sync", "async", "threads", "both"]


def program_of(models: Models, shape: str, count: int = 3) -> Callable[[], Any]:
    """A program of two questions a page: done one after another, at once in a loop, at once in threads, or mixed."""

    def program() -> Any:
        if shape == "sync":
            return told(Loop([want, note], [LLMExecutor(models.say)]).run(*pages(count)))
        if shape == "async":
            return told(Loop([want, note], [LLMExecutor(models.say_late)]).run(*pages(count)))
        executors = [LLMExecutor(models.say)]
        if shape == "both":
            executors.insert(0, LLMExecutor(models.say_late, models=("small",)))
        return told(asyncio.run(Loop([want, note], executors).run_async(*pages(count))))

    return program


@pytest.mark.parametrize("shape", SHAPES)
def test_a_replay_asks_no_model_and_comes_to_the_same_world(models: Models, shape: str) -> None:
    """Each request once while recording; in two replays none, with the same events in the same order, the same world and hash."""
    program = program_of(models, shape)
    run, first = recorded(program)
    assert len(models.asked) == 6
    for _ in range(2):
        report, again = replayed(run, program)
        assert report.exact
        assert again == first
    assert len(models.asked) == 6
    assert World.of(run).as_dict() == first[0]
    assert World.of(run).hash == first[1]
    assert pending_requests(run) == []


def test_fifty_at_once_answered_in_shuffled_order(models: Models) -> None:
    """They really are on their way at once, are answered in another order than asked, and a replay gives the answers in that order."""
    order = random.Random(3).sample(range(50), 50)
    waiting: dict[int, asyncio.Event] = {}

    async def shuffled(messages: Any, **rest: Any) -> dict[str, Any]:
        number = int(messages[0]["content"].split()[1].split(".")[0])
        waiting[number] = asyncio.Event()
        if len(waiting) == 50:
            waiting[order[0]].set()
        await waiting[number].wait()
        answer = models.say(messages)
        place = order.index(number) + 1
        if place < 50:
            waiting[order[place]].set()
        return answer

    @responder("llm.response")
    def count(event: IntentionEvent, world: World) -> Intention:
        place = sum("place" in one for one in world.as_dict().values())
        return patch(str(event.object), {"text": event.text, "place": place})

    def program() -> Any:
        return told(Loop([want, count], [LLMExecutor(shuffled)]).run(*pages(50)))

    run, first = recorded(program)
    assert [first[0][f"page-{number}"]["place"] for number in order] == list(range(50))
    for _ in range(2):
        waiting.clear()
        report, again = replayed(run, program)
        assert report.exact
        assert again == first
    assert len(models.asked) == 50


@pytest.mark.parametrize("shape", ["async", "threads"])
def test_real_clients_at_once(shape: str) -> None:
    """The same over real HTTP, the provider answering in an order of its own: replayed exactly, nothing sent."""
    count = 8

    @responder("llm.response")
    def keep(event: IntentionEvent) -> Intention:
        return patch(str(event.object), {"text": event.text})

    with stub_provider() as provider:

        async def main() -> Any:
            options = {"base_url": f"{provider.url}/v1", "api_key": "k"}
            if shape == "threads":
                with openai.OpenAI(http_client=httpx.Client(), **options) as client:
                    return told(await Loop([want, keep], [LLMExecutor(client)]).run_async(*pages(count)))
            async with openai.AsyncOpenAI(**options) as asked:
                return told(await Loop([want, keep], [LLMExecutor(asked)]).run_async(*pages(count)))

        run, first, second = both(lambda: asyncio.run(main()))
        assert sum(provider.requests.values()) == count
    assert first == second
    assert len(of_type(run, "llm.request")) == count
    assert len({page["text"] for page in first[0].values()}) == count


# -- nothing stays pending without a word ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_missing_executor_fails_with_the_pending_requests_by_name(models: Models, asynchronous: bool) -> None:
    """Before anything is asked: every request that has no answer is named, with who intends it and for what."""

    @responder("object.created")
    def mixed(event: IntentionEvent) -> list[Intention]:
        return [ask("a", model="small", object=event.object), call("serach", {"q": "b"}, object=event.object)]

    def program() -> Any:
        loop = Loop([mixed], [LLMExecutor(models.say_late if asynchronous else models.say)])
        with pytest.raises(PendingRequestsError) as caught:
            loop.run(create("page", {}))
        return str(caught.value), caught.value.pending

    run, first, second = both(program)
    assert first == second
    assert models.asked == []
    text, pending = first
    assert "no executor takes tool.call 'serach' for object 'page'" in text
    assert "llm.request 'small'" in text
    assert [(one["kind"], one["name"], one["object"], one["by"], one["reason"]) for one in pending] == [
        ("llm.request", "small", "page", "mixed", "not answered yet"),
        ("tool.call", "serach", "page", "mixed", "no executor"),
    ]
    assert [one["seq"] for one in pending] == [one["seq"] for one in of_type(run, "decision")]
    assert [one["name"] for one in pending_requests(run)] == ["small", "serach"]


@pytest.mark.parametrize("shape", SHAPES)
def test_an_answer_that_nobody_reads_is_told_at_the_end(models: Models, shape: str, tmp_path: Path) -> None:
    """A typo in `of=`: what was asked for was answered, and nobody takes it in. The error names the answers, the responders and what
    each reads; a replay, and a resumption from anywhere, end in the same way, and nothing is done twice."""

    @responder("llm.response", of="smal")
    def note(event: IntentionEvent) -> None: ...

    async def say_late(messages: Any, **rest: Any) -> Any:
        return models.say(messages)

    def program() -> Any:
        executors = [LLMExecutor(say_late if shape in ("async", "both") else models.say, models=("small",))]
        executors.append(LLMExecutor(models.say))
        world = World()
        loop = Loop([want, note], executors, world=world)
        with pytest.raises(UnreadEventsError) as caught:
            loop.run(*pages(2)) if shape == "sync" else asyncio.run(loop.run_async(*pages(2)))
        return str(caught.value).splitlines()[0], sorted(map(str, caught.value.unread)), world.as_dict(), world.hash

    run, first = recorded(program)
    report, second = replayed(run, program)
    assert report.exact
    assert first == second
    assert len(models.asked) == 2
    assert "no responder reads llm.response of 'small' for object 'page-" in first[0]
    assert first[0].endswith("want: object.created; note: llm.response of 'smal'")
    answered = [one["seq"] for one in of_type(run, "decision") if one["meta"]["event"] == "llm.response"]
    assert first[1] == sorted(
        str({"seq": seq, "kind": "llm.response", "name": "small", "object": f"page-{n}"})
        for seq, n in zip(answered, (0, 1) if f"'page-0' (entry {answered[0]})" in first[0] else (1, 0), strict=True)
    )
    assert World.of(run).hash == first[3]
    for count in range(2, len(lines(run)) - 1):
        path = cut(run, count, tmp_path / str(count))
        models.asked.clear()
        with resume(path, store=str(tmp_path / str(count))):
            third = program()
        assert (third[0].split("; ")[-2:], third[2:]) == (first[0].split("; ")[-2:], first[2:])
        assert len(models.asked) == 2 - len(of_type(cut(run, count, tmp_path / f"{count}b"), "llm.response"))


def test_who_reads_an_answer(models: Models) -> None:
    """A responder that returns nothing reads it; so does the program, where there are no responders, or where it says so. A tool's
    answer is one, too; that an object was made or changed is for nobody in particular."""

    def look(path: str) -> str:
        return f"seen {path}"

    @responder("llm.response")
    def heard(event: IntentionEvent) -> None: ...

    @responder("object.created", of="page-9")
    def other(event: IntentionEvent) -> None: ...

    executors = [LLMExecutor(models.say), ToolExecutor(look, side_effect="read_only")]
    asked = [ask("a"), call("look", {"path": "b"})]

    def program() -> Any:
        assert len(Loop([], executors).run(*asked).answers) == 2
        with pytest.raises(
            UnreadEventsError, match=r"reads tool\.return of '.*look' \(entry \d+\); the.*heard: llm\.response"
        ):
            Loop([heard], executors, world=World("second")).run(*asked)
        with pytest.raises(UnreadEventsError, match=r"reads llm\.response of 'model' .*, tool\.return of "):
            Loop([other], executors, world=World("third")).run(*asked)
        Loop([heard], executors, world=World("fourth")).run(ask("a"), create("page", {}), patch("page", {"n": 1}))
        return len(Loop([other], executors, world=World("fifth"), unread="ok").run(*asked).answers)

    _, first, second = both(program)
    assert first == second == 2
    assert len(models.asked) == 5
    with pytest.raises(IntentionError, match="unread='maybe' is not known"):
        Loop(unread="maybe")  # type: ignore[arg-type]


def test_a_responder_to_an_object_that_never_was_is_warned_of(models: Models) -> None:
    """Where nobody reads what happened to others. It need not be there, so it is no error; not told where it was there, where others
    read, where unread="ok"."""

    @responder("object.created", of="pgae")
    def slip(event: IntentionEvent) -> None: ...

    @responder("object.created")
    def every(event: IntentionEvent) -> None: ...

    def program() -> Any:
        Loop([slip, every], world=World("others read")).run(create("page", {}))
        Loop([slip], world=World("there")).run(create("page", {}), create("pgae", {}))
        Loop([slip], world=World("said"), unread="ok").run(create("page", {}))
        Loop([slip], world=World("nothing happened")).run()
        return Loop([slip], world=World("wrong")).run(create("page", {})).hash

    with pytest.warns(
        RuntimeWarning, match=r"'slip' reads object\.created of 'pgae', and the world 'wrong' .* of 'page'"
    ):
        run, first = recorded(program)
    assert [one for one in run.warnings if "reads" in one] == [
        "responder 'slip' reads object.created of 'pgae', and the world 'wrong' has no such object; nothing read the changes of 'page'"
    ]
    report, second = replayed(run, program)
    assert report.exact
    assert first == second
    with pytest.warns(RuntimeWarning, match="has no such object"):
        program()


def test_a_failure_that_nobody_reads_says_who_reads_others(models: Models) -> None:
    """It is raised, as ever; where there is a responder to failures of this kind, a note names what that one reads."""

    def fail(messages: Any, **rest: Any) -> str:
        raise ConnectionError("down")

    @responder("llm.error", of="smal")
    def retry(event: IntentionEvent) -> None: ...

    def program() -> Any:
        with pytest.raises(ConnectionError) as caught:
            Loop([retry], [LLMExecutor(fail)]).run(ask("a", model="small"))
        return caught.value.__notes__

    _, first, second = both(program)
    assert first == second
    [note] = first
    assert note.startswith("no responder reads llm.error of 'small' (entry ")
    assert note.endswith("retry: llm.error of 'smal'")


def test_a_run_that_ends_while_a_loop_is_running_says_what_has_no_answer(models: Models) -> None:
    """A loop that nobody waits for: the end of the run warns, and names each request that is left."""

    async def never(messages: Any, **rest: Any) -> str:
        models.asked.append("")
        await asyncio.Event().wait()
        return ""

    async def main() -> Any:
        with record() as run:
            task = asyncio.ensure_future(Loop([want, note], [LLMExecutor(never)]).run_async(*pages(2)))
            while len(models.asked) < 2:
                await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return run

    with pytest.warns(RuntimeWarning, match="the run ended while a loop was running"):
        run = asyncio.run(main())
    [said] = [one for one in run.warnings if "while a loop was running" in one]
    for number, request in enumerate(pending_requests(run)):
        assert f"llm.request 'small' for object 'page-{number}' (entry {request['seq']}, from want)" in said
    assert len(pending_requests(run)) == 2


@pytest.mark.parametrize("shape", SHAPES)
def test_a_missing_executor_fails_in_a_resumption_too(models: Models, shape: str, tmp_path: Path) -> None:
    """Cut anywhere, it goes on to the same error with the same list, and nothing is asked."""

    @responder("llm.response")
    def look(event: IntentionEvent) -> Intention:
        return call("serach", {"q": event.text}, object=event.object)

    async def late(messages: Any, **rest: Any) -> Any:
        await asyncio.sleep(0)
        return models.say(messages)

    def program() -> Any:
        loop = Loop([want, look], [LLMExecutor(late if shape in ("async", "both") else models.say)])
        with pytest.raises(
            PendingRequestsError, match=r"no executor takes tool\.call 'serach' for object 'page-0'"
        ) as caught:
            loop.run(*pages(1)) if shape == "sync" else asyncio.run(loop.run_async(*pages(1)))
        return caught.value.pending

    run, first, second = both(program)
    assert first == second
    assert [(one["name"], one["reason"]) for one in first] == [("serach", "no executor")]
    for count in range(2, len(lines(run)) - 1):
        path = cut(run, count, tmp_path / str(count))
        answered = len(of_type(path, "llm.response"))
        models.asked.clear()
        with resume(path, store=str(tmp_path / str(count))):
            third = program()
        assert [(one["name"], one["object"]) for one in third] == [("serach", "page-0")]
        assert len(models.asked) == 1 - answered
        assert [one["name"] for one in pending_requests(path)] == ["serach"]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_patch_of_an_unknown_object_ends_the_loop(models: Models, shape: str, tmp_path: Path) -> None:
    """A responder with a typo: refused and not on the log, the world as before; the same in a replay and a resumption."""

    @responder("llm.response")
    def slip(event: IntentionEvent) -> Intention:
        return patch("pgae", {"text": event.text})

    async def late(messages: Any, **rest: Any) -> Any:
        await asyncio.sleep(0)
        return models.say(messages)

    def program() -> Any:
        world = World()
        loop = Loop([want, slip], [LLMExecutor(late if shape in ("async", "both") else models.say)], world=world)
        with pytest.raises(UnknownObjectError, match="'page-0'") as caught:
            loop.run(*pages(1)) if shape == "sync" else asyncio.run(loop.run_async(*pages(1)))
        return caught.value.object, world.as_dict(), world.hash

    run, first, second = both(program)
    assert first == second
    assert first[0] == "pgae"
    assert [one["name"] for one in of_type(run, "object.patched")] == ["page-0"]
    assert World.of(run).hash == first[2]
    for count in range(2, len(lines(run)) - 1):
        path = cut(run, count, tmp_path / str(count))
        with resume(path, store=str(tmp_path / str(count))):
            assert program() == first
        assert [one["name"] for one in of_type(path, "object.patched")] == ["page-0"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_budget_holds_over_a_crash(models: Models, asynchronous: bool, tmp_path: Path) -> None:
    """What was spent before the crash is spent, once: the resumed run is stopped where the whole one was, and its replay, too."""

    @responder("llm.response")
    def on_and_on(event: IntentionEvent) -> list[Intention]:
        return [patch("page-0", {"text": event.text}), ask(event.text, object="page-0")]

    def program() -> None:
        executor = LLMExecutor(models.say_late if asynchronous else models.say, model="small")
        Loop([on_and_on], [executor]).run(*pages(1), ask("first", object="page-0"))

    limits = Budget(usd=1.5, prices={"small": Price(1, 1)}, assumed_output_tokens=1)
    with pytest.raises(BudgetExceededError), pytest.warns(RuntimeWarning, match="budget"), record(budget=limits) as run:
        program()
    assert len(models.asked) == 3
    for count in range(2, len(lines(run)) - 1):
        path = cut(run, count, tmp_path / str(count))
        answered = len(of_type(path, "llm.response"))
        models.asked.clear()
        store = str(tmp_path / str(count))
        with (
            pytest.raises(BudgetExceededError),
            pytest.warns(RuntimeWarning, match="budget"),
            resume(path, store=store),
        ):
            program()
        assert len(models.asked) == 3 - answered
        [end] = of_type(path, "run.failed")
        assert end["meta"]["budget"]["spent"]["usd"] == pytest.approx(
            1.5, abs=0.001
        )  # one in doubt counts as estimated
        with pytest.raises(BudgetExceededError), replay(path, store=store):
            program()
        assert len(models.asked) == 3 - answered


def test_no_executor_at_all_fails(models: Models) -> None:
    """An agent that nobody wired an executor to does not sit there with its findings pending."""
    with pytest.raises(PendingRequestsError, match="no executor"):
        Loop([want, note]).run(*pages(1))


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_left_pending_by_an_exception_is_named(models: Models, shape: str) -> None:
    """A responder that raises: the exception comes out of the loop with a note of what is left, the run says it too."""

    @responder("llm.response")
    def broken(event: IntentionEvent) -> None:
        raise LookupError("broken")

    def program() -> Any:
        asynchronous = shape in ("async", "both")
        loop = Loop([want, broken], [LLMExecutor(models.say_late if asynchronous else models.say)])
        with pytest.raises(LookupError) as caught:
            loop.run(*pages(3)) if shape == "sync" else asyncio.run(loop.run_async(*pages(3)))
        return caught.value.__notes__

    with record() as run:
        notes = program()
    assert "left without an answer: llm.request 'small' for object 'page-" in notes[0]
    assert any("left without an answer" in one for one in of_type(run, "run.completed")[0]["meta"]["warnings"])
    asked = len(models.asked)
    with replay(run):
        assert program() == notes
    assert len(models.asked) == asked
    assert len(pending_requests(run)) == 2


@pytest.mark.parametrize("shape", SHAPES)
def test_one_of_many_that_fails(models: Models, shape: str) -> None:
    """Nobody responds to llm.error: the exception comes out, the others are named, what had begun is waited for (no answer that is
    paid for is lost), the rest never begins; a replay ends in the same way."""

    def say(messages: Any) -> Any:
        if messages[-1]["content"] == "about 2.html":
            models.asked.append("failed")
            raise ConnectionError("down")
        return models.say(messages)

    async def late(messages: Any, **rest: Any) -> Any:
        for _ in range(random.SystemRandom().randrange(1, 6)):
            await asyncio.sleep(0)
        return say(messages)

    def program() -> Any:
        executors = [LLMExecutor(lambda messages, **rest: say(messages))]
        if shape in ("async", "both"):
            executors.insert(0, LLMExecutor(late, models=("small",)))
        world = World()
        loop = Loop([want, note], executors, world=world)
        with pytest.raises(ConnectionError, match="down") as caught:
            loop.run(*pages(5)) if shape == "sync" else asyncio.run(loop.run_async(*pages(5)))
        return getattr(caught.value, "__notes__", None), world.as_dict()

    for _ in range(10):
        run, first = recorded(program)
        asked = len(models.asked)
        assert len(of_type(run, "llm.request")) == len(of_type(run, "llm.response")) + 1
        assert [one["error"]["type"] for one in of_type(run, "llm.error")] == ["builtins:ConnectionError"]
        report, second = replayed(run, program)
        assert report.exact
        assert first == second
        assert len(models.asked) == asked


@pytest.mark.parametrize("shape", SHAPES)
def test_a_budget_that_is_exceeded_in_the_middle(models: Models, shape: str) -> None:
    """The call over the limit is not made, those before are delivered or named as left; a replay raises the same, asks nothing."""
    program = program_of(models, shape, 4)
    with (
        pytest.raises(BudgetExceededError),
        pytest.warns(RuntimeWarning, match="budget"),
        record(budget=Budget(llm_calls=3)) as run,
    ):
        program()
    assert len(models.asked) <= 3
    asked = len(models.asked)
    with pytest.raises(BudgetExceededError), replay(run):
        program()
    assert len(models.asked) == asked


def test_a_loop_that_is_cancelled_names_what_is_left(models: Models) -> None:
    """The requests on their way are cancelled with it, and named."""

    both_asked = asyncio.Event()

    async def never(messages: Any, **rest: Any) -> str:
        models.asked.append("")
        if len(models.asked) == 2:
            both_asked.set()
        await asyncio.Event().wait()
        return ""

    async def main() -> Any:
        task = asyncio.ensure_future(Loop([want], [LLMExecutor(never)]).run_async(*pages(2)))
        await both_asked.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return asyncio.all_tasks() - {asyncio.current_task()}

    with record() as run:
        assert asyncio.run(main()) == set()
    assert any("left without an answer" in one for one in of_type(run, "run.completed")[0]["meta"]["warnings"])
    assert len(pending_requests(run)) == 2


def test_responders_that_answer_one_another_are_stopped() -> None:
    """After max_events, with an error that says so."""

    @responder("object.created", "object.patched")
    def again(event: IntentionEvent, world: World) -> Intention:
        return patch(str(event.object), {"n": world[str(event.object)]["n"] + 1})

    def program() -> Any:
        world = World()
        with pytest.raises(IntentionError, match="more than 100 events"):
            Loop([again], world=world, max_events=100).run(create("page", {"n": 0}))
        return world["page"]

    _, first, second = both(program)
    assert first == second == {"n": 100}


def test_a_loop_with_async_executors_in_a_running_loop(models: Models) -> None:
    """`run` would block it: the error says to await run_async."""

    async def main() -> None:
        with pytest.raises(RunStateError, match="running event loop"):
            Loop([], [LLMExecutor(models.say_late)]).run(ask("a"))

    asyncio.run(main())


def test_nothing_to_do() -> None:
    """A loop without intentions is an empty world, whose hash is recorded all the same."""
    run, first, second = both(lambda: told(Loop().run()))
    assert first == second
    assert first[0] == {}
    assert first[2] == []
    assert of_type(run, "data")[0]["output"] == first[1]


# -- the log ----------------------------------------------------------------------------------------------------------------------


def test_the_chain_in_the_trace(models: Models) -> None:
    """object.created, then the request, its exchange inside it, the answer, the patch: each names its cause, of the right kind."""
    run, _ = recorded(program_of(models, "async", 2))
    kinds: dict[int, str] = {}
    chain: list[tuple[str, str | None]] = []
    for entry in of_type(run, "decision", "object.patched", "data"):
        meta = entry["meta"]
        on = meta.get("on")
        if on is not None:
            assert kinds[on["seq"]] == on["type"]
            assert entry["cause"] == [{"run_id": run.id, "segment": None, "seq": on["seq"]}]
        kinds[entry["seq"]] = meta["event"]
        chain.append((meta["event"], None if on is None else on["type"]))
    assert set(chain) == {
        ("object.created", None), ("llm.request", "object.created"), ("llm.response", "llm.request"), ("object.patched", "llm.response"),
        ("llm.request", "llm.response"), ("world.hash", None),
    }  # fmt: skip
    requests = {entry["seq"] for entry in of_type(run, "decision") if entry["meta"]["event"] == "llm.request"}
    assert {entry["parent"] for entry in of_type(run, "llm.request")} == requests
    assert ordered(events(run.path)) == []  # the inter-agent view has nothing of it, and nothing dangles there


def test_a_long_conversation_is_on_the_log_once(models: Models) -> None:
    """Each turn sends all that was said; the trace grows with the turns, not with their square, and every message can be told."""

    def conversation(turns: int) -> Run:
        said: list[dict[str, str]] = []

        def question() -> Intention:
            said.append({"role": "user", "content": f"question {len(said)} " + "x" * 200})
            return ask(said, object="page")

        @responder("object.created")
        def begin(event: IntentionEvent) -> Intention:
            return question()

        @responder("llm.response")
        def keep(event: IntentionEvent) -> list[Intention]:
            said.append({"role": "assistant", "content": event.text})
            return [patch("page", {"last": event.text}), *([question()] if len(said) < 2 * turns else [])]

        def program() -> Any:
            said.clear()
            told(Loop([begin, keep], [LLMExecutor(models.say)]).run(create("page", {})))
            return list(said)

        run, first, second = both(program)
        assert first == second
        asked: dict[int, list[Any]] = {}
        for entry in of_type(run, "decision"):
            if entry["meta"]["event"] == "llm.request":
                output = entry["output"]
                asked[entry["seq"]] = asked.get(output.get("after"), []) + output["data"]["messages"]
        assert len(asked) == turns
        assert list(asked.values())[-1] == first[:-1]
        return run

    small, large = (sum(map(len, lines(conversation(turns)))) for turns in (10, 40))
    assert large < 5 * small


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_done_is_what_was_written_down(shape: str) -> None:
    """A callable that puts its answer into the messages that it was given, a tool that changes its arguments, a responder that keeps
    its intention and changes it later: none of it reaches the log, the next question, or another's event."""
    kept: list[Intention] = []

    def say(messages: Any, **rest: Any) -> str:
        text = f"{len(messages)} said: {messages[-1]['content']}"
        messages.append({"role": "assistant", "content": text})
        messages[0]["content"] = "changed"
        rest["stop"].append("changed")
        return text

    async def late(messages: Any, **rest: Any) -> str:
        await asyncio.sleep(0)
        return say(messages, **rest)

    def sort(items: list[int]) -> list[int]:
        items.sort()
        return list(items)

    @responder("object.created")
    def begin(event: IntentionEvent) -> list[Intention]:
        kept[:] = [ask("first", object="page", stop=["x"]), call("sort", {"items": [3, 1]}, object="page")]
        return [*kept, patch("page", {"begun": True})]

    @responder("object.patched")
    def change(event: IntentionEvent) -> None:
        kept[0].data["messages"][0]["content"] = kept[0].data["stop"][0] = "changed"  # type: ignore[index]
        kept[1].data["items"].append(2)

    @responder("llm.response")
    def go_on(event: IntentionEvent, world: World) -> list[Intention]:
        assert event.request is not None
        said = [*event.request.data["messages"], {"role": "assistant", "content": event.text}]
        event.request.data["messages"].append(said[-1])
        if len(said) > 4:
            return [patch("page", {"said": said})]
        return [ask([*said, {"role": "user", "content": "next"}], object="page", stop=["x"])]

    @responder("tool.return")
    def sorted_out(event: IntentionEvent) -> Intention:
        assert event.request is not None
        return patch("page", {"sorted": event.output, "items": event.request.data["items"]})

    def program() -> Any:
        executors = [
            LLMExecutor(late if shape in ("async", "both") else say),
            ToolExecutor(sort, side_effect="read_only"),
        ]
        loop = Loop([begin, change, go_on, sorted_out], executors)
        outcome = loop.run(create("page", {})) if shape == "sync" else asyncio.run(loop.run_async(create("page", {})))
        return outcome.world["page"]

    run, first = recorded(program)
    report, second = replayed(run, program)
    assert report.exact
    assert first == second
    assert (first["sorted"], first["items"]) == ([1, 3], [3, 1])
    assert [one["content"] for one in first["said"]] == [
        "first", "1 said: first", "next", "3 said: next", "next", "5 said: next",
    ]  # fmt: skip
    asked: dict[int, list[Any]] = {}
    for entry in of_type(run, "decision"):
        if entry["meta"]["event"] == "llm.request":
            output = entry["output"]
            asked[entry["seq"]] = asked.get(output.get("after"), []) + output["data"]["messages"]
            assert output["data"]["stop"] == ["x"]
    assert [*asked.values()] == [first["said"][:1], first["said"][:3], first["said"][:5]]


def test_two_loops_in_one_run(models: Models) -> None:
    """Beside one another in two tasks, each with its own world: replayed exactly."""

    async def one(name: str) -> Any:
        world = World(name)
        return told(await Loop([want, note], [LLMExecutor(models.say_late)], world=world).run_async(*pages(3)))

    async def main() -> Any:
        return await asyncio.gather(one("a"), one("b"))

    run, first, second = both(lambda: asyncio.run(main()))
    assert first == second
    assert len(models.asked) == 12
    assert [World.of(run, name=name).as_dict() for name in "ab"] == [first[0][0], first[1][0]]


@pytest.mark.parametrize("way", ["task", "thread"])
def test_two_loops_at_once_in_one_world_are_refused(models: Models, way: str) -> None:
    """The order of their changes would be chance; the first goes on, and when it has ended the world is free again."""
    world, first = World(), threading.Event()

    async def one() -> str:
        try:
            async with asyncio.timeout(30):
                await Loop([want, note], [LLMExecutor(models.say_late)], world=world).run_async(*pages(2))
        except RunStateError as error:
            return str(error)
        return "done"

    def other() -> str:
        with pytest.raises(RunStateError, match="another loop is running in the world 'world'"):
            Loop([want], world=world).run(create("page-9", {}))
        return "refused"

    async def main() -> Any:
        if way == "task":
            return [said[:40] for said in await asyncio.gather(one(), one())]

        async def ask_other(messages: Any, **rest: Any) -> Any:
            if not first.is_set():
                first.set()
                assert await asyncio.to_thread(other) == "refused"
            return models.say(messages)

        await Loop([want, note], [LLMExecutor(ask_other)], world=world).run_async(*pages(2))
        return "done"

    with record() as run:
        said = asyncio.run(main())
        Loop(world=world).run(create("page-9", {}))
    assert said == ("done" if way == "thread" else ["done", "[run-state] another loop is running in t"])
    assert len(World.of(run)) == 3


def test_a_loop_goes_on_in_the_world_of_another(models: Models) -> None:
    """What an earlier loop came to is there; its events may be causes."""

    def program() -> Any:
        world = World()
        executors = [LLMExecutor(models.say)]
        first = Loop([want, note], executors, world=world).run(*pages(1))
        return told(Loop([], executors, world=world).run(patch("page-0", {"seen": True}, cause=first.events[-1])))

    run, first, second = both(program)
    assert first == second
    assert first[0]["page-0"]["seen"] is True
    assert World.of(run).hash == first[1]
    assert len(of_type(run, "data")) == 2


# -- resumption ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_a_run_that_was_cut_anywhere_goes_on(models: Models, shape: str, tmp_path: Path) -> None:
    """Cut after any entry: what has its answer in the log is not asked again, what has none is, and the world is whole."""
    program = program_of(models, shape, 2)
    run, _ = recorded(program)
    whole = lines(run)
    for count in range(2, len(whole) - 1):
        path = cut(run, count, tmp_path / str(count))
        answered = len(of_type(path, "llm.response"))
        left = len(pending_requests(path))
        assert left <= 2
        models.asked.clear()
        store = str(tmp_path / str(count))
        with resume(path, store=store) as resumed:
            came_to = program()
        assert len(models.asked) == 4 - answered, count
        assert World.of(path).as_dict() == came_to[0]
        assert World.of(path).hash == came_to[1]
        assert all(page["status"] == "done" for page in came_to[0].values())
        before = len(models.asked)
        with replay(path, store=store) as session:
            assert program() == came_to
        assert session.report.exact
        assert len(models.asked) == before
        assert pending_requests(path) == []
        assert isinstance(resumed, Run)


def test_a_resumed_answer_costs_what_it_cost_and_no_more(models: Models, tmp_path: Path) -> None:
    """Those from the log cost nothing now and say so; those that are asked now cost what they cost."""

    def program() -> LoopResult:
        return Loop([want, note], [LLMExecutor(models.say)]).run(*pages(1))

    run, _ = recorded(lambda: program() and None)
    first = next(place for place, line in enumerate(lines(run), 1) if b'"type":"llm.response"' in line)
    path = cut(run, first, tmp_path)
    with resume(path, store=str(tmp_path)):
        outcome = program()
    assert [event.replayed for event in outcome.answers] == [True, False]
    assert outcome.cost_usd == 0.5
    assert outcome.replayed == 1


def test_an_irreversible_tool_in_doubt_is_not_called_again(tmp_path: Path) -> None:
    """The intention is there, its outcome is not: a resumption is refused, as for any irreversible tool."""
    sent: list[str] = []

    @traced_tool(side_effect="irreversible", name="mail")
    def mail(to: str) -> str:
        sent.append(to)
        return "sent"

    def program() -> None:
        Loop([], [ToolExecutor(mail)]).run(call("mail", {"to": "bob"}))

    run, _ = recorded(program)
    at = next(place for place, line in enumerate(lines(run), 1) if b'"type":"tool.call"' in line)
    path = cut(run, at, tmp_path)
    with pytest.raises(RecoveryRefusedError), resume(path, store=str(tmp_path)):
        program()
    assert sent == ["bob"]
    assert [one["name"] for one in pending_requests(path)] == ["mail"]


# -- what-if --------------------------------------------------------------------------------------------------------------------------


def test_what_if_the_model_had_said_something_else(models: Models) -> None:
    """live={"llm"}: the model is asked again, what follows differs only where it says so, and the answer is none of the log."""

    def program() -> LoopResult:
        return Loop([want], [LLMExecutor(models.say)], unread="ok").run(*pages(1))

    run, _ = recorded(lambda: program() and None)
    with replay(run, live={"llm"}) as session:
        outcome = program()
    assert len(models.asked) == 2
    assert outcome.answers[0].replayed is False
    assert outcome.cost_usd == 0.5
    assert session.report.differences
    assert session.new_run_id is not None
    assert World.of(session.new_run_id).as_dict() == outcome.world.as_dict()


def test_a_program_that_asks_for_less_is_noticed(models: Models) -> None:
    """A replay in which the responders are missing comes to another world, and that is the divergence."""
    run, _ = recorded(program_of(models, "sync", 1))
    with pytest.raises(DivergenceError, match="'world'"), replay(run):
        Loop([], [LLMExecutor(models.say)]).run(*pages(1))
