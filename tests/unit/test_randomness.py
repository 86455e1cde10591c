"""Draws: every generator, however it is reached, gives in a replay what it gave; nobody else's draws are touched."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import random
import secrets
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from pathlib import Path
from random import random as imported_name
from typing import Any

import numpy as np
import pytest
import uuid_utils
import uuid_utils.compat

import tracekit
from tests.support.place import Place
from tests.support.processes import python
from tests.support.reads import reading
from tracekit import _reality, record, replay, traced_tool
from tracekit._capture import randomness
from tracekit.integration import Integration, Trace, current, register

MINE = random.Random()
EARLIER_BOUND = random.Random().random
IN_A_LIST = [os.urandom]


class Loaded(random.Random):
    """A subclass with a distribution of its own."""

    def random(self) -> float:
        return super().random() / 2


LOADED = Loaded()


def seen() -> list[Any]:
    """What the hooks touch, as it is now."""
    functions = (uuid.uuid1, uuid.getnode, random.Random.gauss, uuid_utils.compat.uuid7)
    spaces = [dict(vars(owner)) for owner in (random.Random, random.Random.__mro__[1], random, uuid)]
    for name in ("_node", "_last_timestamp"):  # what uuid itself remembers
        spaces[-1].pop(name, None)
    spaces[-2].pop("_sha512", None)  # what random itself imports when it is first seeded with a text (3.13)
    return [*spaces, os.urandom.__self__, hash(random.random), *(function.__code__ for function in functions)]


#: As the test run found it, before any hook.
BEFORE = seen()


def draw_all() -> list[Any]:
    """Every source, through every kind of reference."""
    items = list(range(20))
    random.shuffle(items)
    return [
        random.random(),
        imported_name(),
        EARLIER_BOUND(),
        MINE.random(),
        LOADED.uniform(1, 3),
        random.randint(1, 6),
        random.choice("abcdef"),
        random.choices(range(100), k=5),
        random.sample(range(1000), 5),
        items,
        [random.gauss(0, 1) for _ in range(3)],
        random.normalvariate(0, 1),
        random.expovariate(2),
        random.getrandbits(7),
        random.getrandbits(64),
        random.getrandbits(5000),
        random.randbytes(40),
        random.Random().random(),
        random.SystemRandom().randint(0, 10**9),
        secrets.token_hex(8),
        secrets.choice("xyz"),
        os.urandom(12),
        IN_A_LIST[0](3),
        *([os.getrandom(5), os.getrandom(size=2, flags=0)] if hasattr(os, "getrandom") else []),
        uuid.uuid1(),
        uuid.uuid1().is_safe,
        uuid.uuid1(clock_seq=5),
        uuid.uuid4(),
        uuid.getnode(),
        uuid_utils.uuid4(),
        uuid_utils.uuid7(),
        uuid_utils.compat.uuid4(),
        uuid_utils.compat.uuid7(),
        np.random.default_rng().normal(size=3).tolist(),
    ]


def test_every_source_is_covered_and_replays() -> None:
    """A second run with the recorded draws gives the very same values, to the last bit and type."""
    with reading() as recorded:
        first = draw_all()
    with reading(recorded.log) as served:
        second = draw_all()
    assert served.left == []
    assert second == first
    assert [type(value) for value in second] == [type(value) for value in first]


def test_recorded_draws_are_plain() -> None:
    """What the session gets can be written: small numbers, text, bytes; big integers as hexadecimal text."""
    with reading() as recorded:
        draw_all()
    for name, value in recorded.log:
        assert type(value) in (float, int, str, bytes, list), name
        if type(value) is int:
            assert value < 2**53


def test_a_megabyte_of_random_bytes_is_one_draw() -> None:
    """``randbytes`` is recorded as one draw, without the interpreter's limit on decimal digits."""
    with reading() as recorded:
        first = random.randbytes(1_000_000)
    assert recorded.names == ["random.getrandbits"]
    with reading(recorded.log):
        assert random.randbytes(1_000_000) == first


def test_a_seeded_generators_state_follows() -> None:
    """A replay makes the draws of a generator that the program seeded for real too: past the recording it goes on right."""
    with reading() as recorded:
        random.seed(5)
        first = [random.random() for _ in range(4)] + [random.gauss(0, 1)]
        further = [random.random(), random.gauss(0, 1)]
    with reading(recorded.log[:5]):
        random.seed(5)
        assert [random.random() for _ in range(4)] + [random.gauss(0, 1)] == first
    assert [random.random(), random.gauss(0, 1)] == further


def test_a_second_value_kept_by_gauss_changes_nothing() -> None:
    """``gauss`` keeps every second value: a replay in a process that kept one draws no less."""
    with reading() as recorded:
        first = random.gauss(0, 1)
    random.gauss(0, 1)
    with reading(recorded.log) as served:
        assert random.gauss(0, 1) == first
    assert served.left == []


def test_seeding_from_the_system_is_no_draw() -> None:
    """``seed()``, ``seed(None)`` and an unseeded ``Random()`` record nothing; the draws that follow are recorded."""
    with reading() as session:
        random.seed()
        random.seed(None)
        random.Random()
    assert session.log == []


def test_draws_of_libraries_are_not_in_the_trace(tmp_path: Path) -> None:
    """What the standard library draws for itself is not recorded, but for the names of temporary files that the program wants."""
    with reading() as session:
        urllib.request.HTTPDigestAuthHandler().get_cnonce("")
        assert session.log == []
        os.close(tempfile.mkstemp(dir=tmp_path)[0])
    assert [name for name, _ in session.log] == ["tempfile.name"]


def test_the_directory_of_temporary_files_is_no_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first question of a process for that directory draws names to try it with: recorded cold and replayed warm is no difference."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    with reading() as session:
        assert tempfile.gettempdir()
    assert session.log == []


def test_what_a_package_draws_while_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an installed package that counts as user code draws when it is imported, a process draws once: it is not the run's. What its
    functions draw later is."""
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "drawsonce.py").write_text(
        "import os, random\nclass Row:\n    id = os.urandom(4)\ndef later():\n    return os.urandom(4), random.random()\nlater()\n"
    )
    monkeypatch.syspath_prepend(str(place))
    tracekit.instrument(user_modules=("drawsonce",))
    try:
        with reading() as session:
            module = importlib.import_module("drawsonce")
            assert session.log == []
            module.later()
    finally:
        tracekit.uninstrument()
    assert [name for name, _ in session.log] == ["os.urandom", "random.random"]


def test_a_replay_gives_a_library_what_it_decided_by(tmp_path: Path) -> None:
    """The pause before another try is as long as it was; a generator that the program seeded goes on from there, and what is drawn once
    more is nobody's fault."""
    namespace: dict[str, Any] = {"__name__": "retrying.waits"}
    code = "import random\ndef pause(draw=random.uniform):\n    return draw(0, 1)\ndef bits():\n    return random.getrandbits(80)\n"
    exec(compile(code, str(tmp_path / "site-packages" / "retrying" / "waits.py"), "exec"), namespace)
    pause, bits = namespace["pause"], namespace["bits"]
    seeded = random.Random(7)

    def program(times: int) -> list[Any]:
        drawn = [pause(), pause(seeded.uniform), bits()]
        tracekit.decision("tried", input=1, output=1)
        return [*drawn, *[pause() for _ in range(times)][:1], seeded.random()]

    with record("job") as run:
        first = program(1)
    seeded.seed(7)
    with replay(run) as session:
        assert program(2) == first
    assert session.report.exact, session.report.as_dict()


@pytest.mark.parametrize("make", ["uuid.uuid4", "uuid.uuid1", "uuid_utils.uuid4", "uuid_utils.uuid7", "fastuuid.uuid4"])
def test_a_replay_gives_a_package_the_ids_that_it_made(tmp_path: Path, make: str) -> None:
    """A package's ids reach what the program prints, and it may decide by them; one more or fewer is no difference."""
    module = make.partition(".")[0]
    namespace: dict[str, Any] = {"__name__": "jobs.ids"}
    code = f"import {module}\ndef new():\n    return {make}()\n"
    exec(compile(code, str(tmp_path / "site-packages" / "jobs" / "ids.py"), "exec"), namespace)

    def program(times: int) -> list[Any]:
        made = [namespace["new"](), namespace["new"]()]
        tracekit.decision("chosen", input=1, output=1)
        return [*made, *[namespace["new"]() for _ in range(times)][:1]]

    with record("job") as run:
        first = program(1)
    for times in (1, 3):
        with replay(run) as session:
            assert program(times) == first
        assert session.report.exact, session.report.as_dict()


@pytest.mark.parametrize("draw", ["os.urandom(10)", "secrets.token_bytes(10)", "secrets.randbits(80).to_bytes(10)"])
def test_a_replay_gives_a_package_the_ids_that_its_own_function_makes(tmp_path: Path, draw: str) -> None:
    """Packages bring a ``uuid7`` of their own (Prefect, ``uuid6``); the keys that they draw the same way are in no trace."""
    namespace: dict[str, Any] = {"__name__": "jobs.ids"}
    code = (
        "import os, secrets, uuid\n"
        f"def uuid7():\n    return uuid.UUID(bytes=bytes(6) + {draw}, version=4)\n"
        f"def key():\n    return {draw}\n"
    )
    exec(compile(code, str(tmp_path / "site-packages" / "jobs" / "ids.py"), "exec"), namespace)

    def program(times: int) -> Any:
        namespace["key"]()
        made = [namespace["uuid7"](), namespace["uuid7"]()]
        tracekit.decision("chosen", input=1, output=1)
        return [*made, *[namespace["uuid7"]() for _ in range(times)][:1]]

    with record("job") as run:
        first = program(1)
    drawn = [value for entry in Trace(run.path).entries() if entry["type"] == "random" for value in entry["values"]]
    assert len(drawn) == 3
    for times in (1, 3):
        with replay(run) as session:
            assert program(times) == first
        assert session.report.exact, session.report.as_dict()


def test_an_id_for_the_headers_of_a_request_is_not_recorded(tmp_path: Path) -> None:
    """An integration names the function of a package that makes it; other ids of that package are recorded."""
    namespace: dict[str, Any] = {"__name__": "acme_sdk.client"}
    code = "import uuid\ndef key():\n    return uuid.uuid4()\ndef new():\n    return uuid.uuid4()\n"
    exec(compile(code, str(tmp_path / "site-packages" / "acme_sdk" / "client.py"), "exec"), namespace)
    register(Integration("acme_sdk", request_ids=("acme_sdk.client:key",)))
    with record("job") as run:
        namespace["key"]()
        made = namespace["new"]()
    (drawn,) = (entry["values"] for entry in Trace(run.path).entries() if entry["type"] == "random")
    assert len(drawn) == 1
    with replay(run) as session:
        namespace["key"]()
        namespace["key"]()
        assert namespace["new"]() == made
    assert session.report.exact, session.report.as_dict()


REMEMBERING = """
import os, time, uuid
last = None, 0

def uuid7():
    global last
    now, (then, count) = time.time_ns() // 1_000_000, last
    if then is None or now > then:
        last = now, int.from_bytes(os.urandom(10))
    else:
        last = then, count + 1 + int.from_bytes(os.urandom(4))
    return uuid.UUID(int=(last[0] << 80 | last[1] & (1 << 74) - 1) & (1 << 128) - 1)
"""


IN_ONE_PROCESS = """
import sys, time
from tracekit import record, replay
from tracekit.integration import Integration, register

sys.path.insert(0, "site-packages")
acme = Integration("acme_ids", frameworks=("acme_ids",), ids=("acme_ids:uuid7",))
when = sys.argv[1]
if when == "at first":
    register(acme)
if when == "after the import":
    import acme_ids
with record("earlier"):
    pass
if when != "in a run":
    register(acme)
import acme_ids

runs = []
for number in range(2):
    with record(f"job {number}") as run:
        register(acme)
        run.set_result([str(acme_ids.uuid7()) for _ in range(3)])
    runs.append(run)
    time.sleep(0.002)  # a later time stamp
for run in reversed(runs):
    with replay(run) as session:
        assert [str(acme_ids.uuid7()) for _ in range(3)] == session.result
    assert session.report.exact, session.report.as_dict()
"""


@pytest.mark.parametrize("when", ["at first", "after the import", "before the import", "in a run"])
def test_an_id_that_depends_on_earlier_runs_is_one_draw(when: str, tmp_path: Path) -> None:
    """A package's ``uuid7`` remembers the last time stamp, and after a later one it draws less. Where an integration
    names it, runs replay in the process that recorded them, in any order; it may be registered after earlier runs."""
    package = tmp_path / "site-packages" / "acme_ids"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(REMEMBERING)
    done = python("-c", IN_ONE_PROCESS, when, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_a_library_makes_secrets_of_is_in_no_trace(tmp_path: Path) -> None:
    """A package's own ``os.urandom`` (keys, tokens) is left alone."""
    namespace: dict[str, Any] = {"__name__": "keys.make"}
    code = "import os, secrets\ndef make():\n    return os.urandom(16).hex() + secrets.token_hex(16)\n"
    exec(compile(code, str(tmp_path / "site-packages" / "keys" / "make.py"), "exec"), namespace)
    with record("job", store=tmp_path / "store") as run:
        made = namespace["make"]()
    text = Path(run.path).read_text()
    assert made[:32] not in text
    assert made[32:] not in text
    assert "os.urandom" not in text


def test_a_live_steps_draws_are_not_in_the_trace() -> None:
    """The body of a live step is not run in replay, so nothing of it is recorded."""
    with reading(live=3) as session:
        draw_all()
    assert session.log == []


def test_everything_is_restored() -> None:
    """After the last session classes, functions and instances are as they were; a generator pickles all the while."""
    with contextlib.suppress(ZeroDivisionError), reading():
        generator = random.Random(1)
        assert pickle.loads(pickle.dumps(generator)).random() == random.Random(1).random()
        raise ZeroDivisionError
    assert seen() == BEFORE
    assert isinstance(uuid.uuid1(), uuid.UUID)
    assert isinstance(uuid_utils.uuid7(), uuid_utils.UUID)


def test_wrong_arguments_fail_as_they_did() -> None:
    """A hook raises what the function raises."""
    with reading():
        with pytest.raises(ValueError, match="bits"):
            random.getrandbits(-1)
        with pytest.raises(TypeError):
            random.getrandbits("x")
        with pytest.raises(TypeError):
            random.random(1)
        with pytest.raises(ValueError):
            os.urandom(-1)
        with pytest.raises(TypeError):
            uuid_utils.uuid7("x")


def test_a_draw_too_many_reaches_the_program() -> None:
    """What the session raises passes through C functions and methods of generators."""
    with reading([]):
        for draw in (random.random, MINE.random, lambda: random.randint(1, 6), uuid.uuid4, uuid_utils.uuid7):
            with pytest.raises(IndexError):
                draw()


def test_tracekits_own_bytes_are_never_hooked() -> None:
    """``_reality.urandom`` asks the system, whoever is recording."""
    with reading() as session:
        assert len(_reality.urandom(4)) == 4
    assert session.log == []


def test_numpys_state_round_trips() -> None:
    """The state of NumPy's global generator is plain JSON, and setting it gives the same draws again."""
    import json

    np.random.standard_normal()
    tree = json.loads(json.dumps(randomness.numpy_state()))
    first = np.random.rand(5).tolist(), np.random.standard_normal(3).tolist()
    randomness.restore_numpy_state(tree)
    assert (np.random.rand(5).tolist(), np.random.standard_normal(3).tolist()) == first


def test_numpys_global_generator_is_aligned_and_put_back() -> None:
    """A replay draws what the recording drew from ``np.random``; after it the process has its own state back."""
    with reading() as recorded:
        randomness.align_numpy(recorded)
        first = np.random.rand(4).tolist()
    assert recorded.names == ["numpy.random.state"]
    np.random.seed(99)
    with reading(recorded.log) as served:
        randomness.align_numpy(served)
        assert np.random.rand(4).tolist() == first
    after = np.random.rand()
    np.random.seed(99)
    assert np.random.rand() == after


LATE = """
from tests.support.reads import reading
with reading() as session:
    import random, uuid, uuid_utils
    import numpy as np
    values = [random.gauss(0, 1), uuid.uuid1(), uuid_utils.uuid7(), np.random.rand()]
print(sorted(set(session.names)))
"""


def test_modules_imported_during_the_run_are_covered() -> None:
    """``random``, ``uuid``, ``uuid_utils`` and NumPy may be imported after the run has begun."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", LATE],
        cwd=root,
        env={"PYTHONPATH": f"{root / 'src'}:{root}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "['numpy.random.state', 'random.gauss', 'uuid.uuid1', 'uuid_utils.uuid7']\n", done.stderr


def test_nothing_is_degraded_here() -> None:
    """On the interpreters that we test, every function can be exchanged in place."""
    with reading():
        assert randomness.hooks.degraded == []
        assert current.get() is not None


@traced_tool(side_effect="read_only")
def _draw(count: int, seed: int | None = None) -> list[float]:
    if seed is not None:
        np.random.seed(seed)
    return [float(np.random.random()) for _ in range(count)]


def test_what_a_tool_draws_from_numpys_global_generator(tmp_path: Path) -> None:
    """What the program draws after it is what it was: after one draw, after as many as the generator makes at once, after a seed, and after
    a tool in a tool; the generator is put back at the end of the replay."""

    @traced_tool(side_effect="read_only")
    def outer() -> float:
        _draw(1)
        return float(np.random.random())

    def program() -> list[Any]:
        drawn: list[Any] = []
        for count, seed in ((0, None), (1, None), (312, None), (3, 7)):
            drawn += [_draw(count, seed), float(np.random.random())]
        return [*drawn, outer(), float(np.random.random()), np.random.randint(1 << 30)]

    with record("r", store=tmp_path) as run:
        recorded = program()
    np.random.seed(1)
    with replay(run.id, store=tmp_path) as session:
        replayed = program()
    assert replayed == recorded
    assert session.report.exact
    after = np.random.random()
    np.random.seed(1)
    assert np.random.random() == after
    lines = [json.loads(line) for line in Path(run.path).read_text().splitlines()]
    assert [one["name"] for one in lines if one["type"] == "input"] == ["state"] * 4


FIRST_DRAW = """
from tracekit import traced_tool
@traced_tool(side_effect="read_only")
def draw():
    import numpy as np
    return np.random.random()
print(draw())
import numpy as np
print(np.random.random())
"""


def test_a_tool_that_loads_numpy_and_draws(tmp_path: Path) -> None:
    """A replay, which comes to NumPy later, goes on where the tool had left its global generator."""
    place = Place(tmp_path)
    place.program(FIRST_DRAW)
    done = place.cli("run", "agent.py", fresh=True)
    assert done.returncode == 0, done.stderr
    again = place.cli("replay", "last", fresh=True)
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
