"""Where a run happened, and how two places differ."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tracekit import record
from tracekit._runs import environment as module
from tracekit._runs.environment import drift, environment, git_revision
from tracekit.integration import Integration, first_entry

SOURCES = Path(module.__file__).parents[2]


def _git(at: Path, *command: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t.test", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *command], cwd=at, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def work_tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    _git(tree, "init", "-q")
    _git(tree, "commit", "-q", "--allow-empty", "-m", "one")
    return tree


def _same(path: Path) -> None:
    module._revision.cache_clear()
    assert git_revision(path) == _git(path, "rev-parse", "HEAD")


def test_revision_is_what_git_says(work_tree: Path, tmp_path: Path) -> None:
    """On a branch, below the root, packed, detached, on a branch with a slash and in a linked work tree."""
    _same(work_tree)
    (work_tree / "a" / "b").mkdir(parents=True)
    _same(work_tree / "a" / "b")
    _git(work_tree, "pack-refs", "--all")
    _same(work_tree)
    _git(work_tree, "switch", "-q", "-c", "feature/x")
    _git(work_tree, "commit", "-q", "--allow-empty", "-m", "two")
    _same(work_tree)
    _git(work_tree, "worktree", "add", "-q", "-b", "other", str(tmp_path / "linked"))
    _git(tmp_path / "linked", "commit", "-q", "--allow-empty", "-m", "three")
    _same(tmp_path / "linked")
    _git(work_tree, "pack-refs", "--all")
    _same(tmp_path / "linked")
    _git(work_tree, "checkout", "-q", "--detach", "HEAD~1")
    _same(work_tree)


@pytest.mark.parametrize(
    "head", ["ref: ../../../etc/passwd", "ref: /etc/passwd", "ref: refs/heads/none", "no hash", ""]
)
def test_hostile_or_broken_git_gives_nothing(tmp_path: Path, head: str) -> None:
    """A ``HEAD`` that points nowhere or outside, or is no reference, is no revision and no error."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(head)
    assert git_revision(tmp_path) is None


def test_environment_lists_loaded_packages_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages that are not loaded are neither imported nor listed; the rest says what runs here."""
    supported = Integration("some", modules=["pytest", "no-such-package", "colorsys"])
    monkeypatch.setattr(module, "known", lambda: {"some": supported})
    found = environment()
    assert found["packages"] == {"pytest": pytest.__version__}
    assert found["python"].split(".")[:2] == [str(part) for part in sys.version_info[:2]]
    assert found["implementation"] == sys.implementation.name


def test_the_command_line_is_there_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run says of its command line is what was typed, but for what stands behind the name of a secret."""
    monkeypatch.setattr(sys, "argv", ["agent.py", "--city", "Bern", "--password", "hunter2-of-mine"])
    with record("journey") as run:
        pass
    *plain, hidden = first_entry(run.path)["meta"]["environment"]["argv"]
    assert plain == ["agent.py", "--city", "Bern", "--password"]
    assert hidden != "hunter2-of-mine"


@pytest.mark.parametrize(("value", "expected"), [("0", 0), ("7", 7), ("random", "random"), ("", "random")])
def test_hash_seed(value: str, expected: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash seed is the number that was fixed, or ``"random"``."""
    monkeypatch.setenv("PYTHONHASHSEED", value)
    assert environment()["hash_seed"] == expected


def test_environment_starts_nothing_and_imports_nothing_heavy() -> None:
    """Asking for the environment runs no process and does not load ``importlib.metadata``."""
    program = (
        "import sys, tracekit; from tracekit._runs.environment import environment; tracekit.instrument()\n"
        "events = set(); sys.addaudithook(lambda event, args: events.add(event)); before = set(sys.modules)\n"
        "environment()\n"
        "assert not events & {'subprocess.Popen', 'os.posix_spawn', 'os.fork'}, events\n"
        "assert not {'importlib.metadata', 'platform'} & (set(sys.modules) - before)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(SOURCES)})


def test_drift_in_words() -> None:
    """Differences that matter are told with both values; equal or unknown ones are not."""
    recorded = {
        "python": "3.11.7",
        "implementation": "cpython",
        "platform": "Linux",
        "packages": {"openai": "2.20.0", "httpx": "0.28.1", "gone": "1"},
        "revision": "a" * 40,
        "hash_seed": 0,
        "argv": ["x"],
    }
    assert drift(recorded, recorded) == []
    assert drift(recorded, {}) == []
    assert drift({}, recorded) == []
    assert drift(recorded, {**recorded, "python": "3.11.9", "platform": "Darwin", "argv": []}) == []
    told = drift(
        recorded,
        {
            **recorded,
            "python": "3.12.1",
            "packages": {"openai": "3.54.0", "httpx": "0.28.1"},
            "revision": "b" * 40,
            "hash_seed": "random",
        },
    )
    assert told == [
        "Python is 3.11 in the recording and 3.12 here",
        "the hash seed is 0 in the recording and random here",
        f"the code revision is {'a' * 40} in the recording and {'b' * 40} here",
        "openai is 2.20.0 in the recording and 3.54.0 here",
    ]
