"""The figures on the structure of the code are those of the sources that they are asked about."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import structure
from tests.support import watch


def checkout(directory: Path, **modules: str) -> Path:
    for name, text in modules.items():
        path = directory / "src" / "tracekit" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def test_rooms_and_circles(tmp_path: Path) -> None:
    """Lines, modules and single importers are counted a room; a circle is found at the level of import that closes it."""
    made = checkout(
        tmp_path,
        errors="X = 1\n",
        room__one="from ..errors import X\nfrom . import two\n",
        room__two="def later():\n    from . import one\n    return one\n",
        room__three=(
            "from typing import TYPE_CHECKING\nimport tracekit.errors\nif TYPE_CHECKING:\n    from .four import four\n"
        ),
        room__four="from .three import X as four\n",
    )
    found = structure.sources(made)
    assert found["rooms"] == {
        "room/": {"lines": 10, "modules": 4, "single_importer": 4},
        "errors.py": {"lines": 1, "modules": 1, "single_importer": 0},
    }
    one_two, three_four = (["tracekit.room.one", "tracekit.room.two"], ["tracekit.room.four", "tracekit.room.three"])
    assert found["circles"] == {
        "on import": [],
        "at run time": [one_two],
        "with types": [three_four, one_two],
    }


def test_no_two_modules_import_one_another() -> None:
    """The imports of this checkout have no circle, those inside functions and those for types included."""
    assert structure.sources(structure.ROOT)["circles"] == {level: [] for level in structure.LEVELS}


def test_state_at_module_level(tmp_path: Path) -> None:
    """What a module fills later is counted, with every ``global`` and every question for the kind of a session."""
    made = checkout(
        tmp_path,
        room__one=(
            "from weakref import WeakSet\nseen: dict[str, int] = {}\nfull = {'a': 1}\nothers = WeakSet()\nn = 0\n"
            "def count(scope):\n    global n\n    n += isinstance(scope.session, (Replay, int))\n"
            "    return hasattr(scope.session, 'log') and isinstance(scope, dict) and getattr(scope, 'lane', None)\n"
        ),
    )
    assert structure.state(made) == {"globals": 1, "registries": 2, "kinds": 1, "probes": 1}


@pytest.fixture(scope="module")
def journeys() -> dict[str, Any]:
    """What each journey touches in this checkout, and the files that it goes through."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(watch.NAME)  # a secret that the environment has is looked for, too
        return structure.journeys(structure.ROOT, steps=True)


def test_journeys_through_this_checkout(journeys: dict[str, Any]) -> None:
    """Each of the five journeys is made and leaves its figures."""
    assert list(journeys) == [journey.__name__ for journey in structure.JOURNEYS]
    for figures in journeys.values():
        assert figures["calls"] >= figures["functions"] >= figures["files"] > 1
        assert figures["calls"] > figures["changes"] > 0


@pytest.mark.parametrize(
    ("journey", "heading"), [("plain_tool", "A plain tool, recorded"), ("openai_chat", "An OpenAI chat, recorded")]
)
def test_the_page_on_how_it_works_walks_through_the_files_that_a_call_enters(
    journey: str, heading: str, journeys: dict[str, Any]
) -> None:
    """docs/how-it-works.md names every file that a recorded call enters, in the order in which it enters them."""
    page = (structure.ROOT / "docs/how-it-works.md").read_text(encoding="utf-8")
    walk = page.partition(heading)[2].partition("\n\n")[2].partition("\n\n")[0]
    shown = re.findall(r"^\d+\. `([\w/]+\.py)`", walk, re.MULTILINE)
    steps = journeys[journey]["steps"]
    files = (step.partition(":")[0].removeprefix("src/tracekit/").removeprefix("integrations/") for step in steps)
    # What an SDK reads on the way depends on its version; garbage is collected when the interpreter likes.
    libraries = ("clock", "randomness", "timers", "callers", "leftovers", "locks", "waits")
    # Without a C compiler what it would compile is Python, and entered.
    passed = {"_native/pure.py", "_runtime/secrets.py", *(f"_capture/{name}.py" for name in libraries)}
    found = [file for file in dict.fromkeys(files) if file not in passed]
    # What an SDK has read is made into values with the next entry, or before that by the thread that writes late, which it may have woken.
    early = {"_values/codec.py", "_journal/writer.py"} if journey == "openai_chat" else set()
    assert [file for file in shown if file not in early] == [file for file in found if file not in early]
    assert set(shown) - early == set(found) - early


def test_journeys_through_another_checkout_are_no_figures(tmp_path: Path) -> None:
    """Where the journeys would not go through the checkout that was asked about, there are no figures but an error."""
    with pytest.raises(SystemExit, match=r"plain_tool: the journeys would go through .*__init__\.py, not through"):
        structure.journeys(tmp_path)


#: What makes a lock that is none of tracekit's own (``_reality.OwnLock``), and why it may.
OTHER_LOCKS = {
    "_capture/threads.py": "threads of the program take turns at a queue in it, for as long as they wait there",
    "_journal/reader.py": "only tried, by whoever may pass entries on",
    "_journal/writer.py": "only tried: a sync knows who leads it",
    "_native/pure.py": "a gate",
    "_reality.py": "gates, and what says that a thread has ended",
    "_runs/debugging.py": "held for as long as a person looks at the stopped program",
    "_runtime/schedule.py": "gates",
    "_runtime/session.py": "a gate",
    "_runtime/threads.py": "a gate",
    "agents/agentloom.py": "sees public names only; reentrant",
    "agents/record.py": "sees public names only; reentrant",
    "agents/registry.py": "sees public names only; reentrant",
    "agents/world.py": "sees public names only; reentrant",
    "cli/dap.py": "of a debugger's own threads",
    "cli/debug.py": "of a debugger's own threads",
    "cli/launch.py": "a gate",
    "testing/blocks.py": "of a test, as the program's own locks; reentrant",
    "testing/crash.py": "of a test, as the program's own locks",
    "testing/model.py": "of a test's server",
    "tracekit_websockets/_threads.py": "sees public names only; reentrant, and gates",
}


def test_whose_locks_tracekit_takes() -> None:
    """What tracekit guards by a lock may be met by a signal handler or a finalizer in the thread that holds it, and by a forked
    child: so every lock is reentrant and free in children, but for those that only mean something else."""
    made = re.compile(r"(?<![\w.])(?:_?thread(?:ing)?\.)?(?:Lock|RLock|allocate_lock)\(\)")
    found = set()
    for root in (structure.ROOT / "src" / "tracekit", structure.ROOT / "integrations"):
        for path in root.rglob("*.py"):
            if made.search(path.read_text("utf-8")):
                found.add(path.relative_to(root).as_posix())
    assert found == {*OTHER_LOCKS}
