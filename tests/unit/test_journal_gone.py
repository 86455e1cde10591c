"""A log that is taken away while its run goes on: nothing irreversible happens without it, and nobody else's file is written into."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tracing import of_type
from tracekit import Run, record, replay, traced_tool
from tracekit.errors import LogWriteError
from tracekit.integration import Store

done: Counter[int] = Counter()


@traced_tool(side_effect="irreversible")
def pay(amount: int) -> int:
    done[amount] += 1
    return amount


def journal_of(run: Run) -> int:
    """The descriptor that the run's log is written through."""
    about = os.stat(run.path)
    for name in os.listdir("/proc/self/fd"):
        try:
            found = os.stat(int(name))
        except (OSError, ValueError):
            continue
        flags = int(Path(f"/proc/self/fdinfo/{name}").read_text().split("flags:")[1].split()[0], 8)
        if (found.st_dev, found.st_ino) == (about.st_dev, about.st_ino) and flags & os.O_APPEND:
            return int(name)
    raise AssertionError("no descriptor of the log is open")


def removed(run: Run, store: Path) -> None:
    shutil.rmtree(store)


def emptied(run: Run, store: Path) -> None:
    os.truncate(run.path, 0)


def closed(run: Run, store: Path) -> None:
    os.close(journal_of(run))


def renamed(run: Run, store: Path) -> None:
    os.rename(run.path, f"{run.path}.old")


def moved_with_its_store(run: Run, store: Path) -> None:
    store.rename(store.with_name("elsewhere"))


def replaced_by_a_copy(run: Run, store: Path) -> None:
    shutil.copy2(run.path, f"{run.path}.copy")
    os.replace(f"{run.path}.copy", run.path)


def appended_to(run: Run, store: Path) -> None:
    program = "import sys; open(sys.argv[1], 'ab').write(b'{}\\n')"
    subprocess.run([sys.executable, "-c", program, run.path], check=True)


def cut_and_extended(run: Run, store: Path) -> None:
    size = os.path.getsize(run.path)
    os.truncate(run.path, size // 2)
    os.truncate(run.path, size)


def cut_and_extended_beyond(run: Run, store: Path) -> None:
    os.truncate(run.path, 0)
    Path(run.path).write_bytes(b"x" * 10_000)


TAKEN = [
    (removed, "removed"),
    (emptied, "cut"),
    (closed, "closed by the program"),
    (renamed, "renamed"),
    (moved_with_its_store, "renamed"),
    (replaced_by_a_copy, "removed"),
    (appended_to, "somebody else has written to it"),
    (cut_and_extended, "cut"),
    (cut_and_extended_beyond, "cut|somebody else has written"),
]


@pytest.mark.parametrize("durability", ["none", "effects", "always"])
@pytest.mark.parametrize(("take", "said"), TAKEN)
def test_no_effect_without_the_log(
    take: Callable[[Run, Path], None], said: str, durability: str, tmp_path: Path
) -> None:
    """Whoever removes or moves the store, renames, cuts or extends the file, or closes the descriptor stops the next effect, with
    one error that says what was done."""
    done.clear()
    store = tmp_path / "store"

    def program() -> None:
        with record("job", store=store, durability=durability) as run:  # type: ignore[arg-type]
            pay(1)
            take(run, store)
            pay(2)

    with pytest.raises(LogWriteError, match=said) as caught:
        program()
    assert done == {1: 1}
    assert caught.value.__context__ is None or not isinstance(caught.value.__context__, LogWriteError)


def test_a_link_to_the_store_may_be_set_anew(tmp_path: Path) -> None:
    """A store that is named by a link, as releases are: the link points to another one later, and the run goes on in its file."""
    done.clear()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    link = tmp_path / "current"
    link.symlink_to("one")
    with record("job", store=link / "store") as run:
        pay(1)
        link.unlink()
        link.symlink_to("two")
        pay(2)
    assert done == {1: 1, 2: 1}
    assert len(of_type(str(tmp_path / "one" / "store" / "runs" / f"{run.id}.jsonl"), "tool.return")) == 2


def test_a_program_that_meets_no_effect_is_told_at_the_end(tmp_path: Path) -> None:
    """A run that lost its log is not passed over in silence."""

    def program() -> None:
        with record("job", store=tmp_path / "store"):
            pay(1)
            shutil.rmtree(tmp_path / "store")

    with pytest.raises(LogWriteError, match="removed"):
        program()


def test_a_process_that_closes_what_is_not_its_own(tmp_path: Path) -> None:
    """A forked child that closes every descriptor first, as one that goes into the background does, is recorded and replayed; and nothing
    of ours is written into the files that it opens then."""
    own = tmp_path / "own"

    def program() -> int:
        pay(1)
        child = os.fork()
        if not child:
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            for _ in range(20):
                os.open(own, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            os._exit(pay(2))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with record("job", store=tmp_path / "store") as run:
        assert program() == 2
    with replay(run) as session:
        assert program() == 2
    assert session.report.exact, session.report.as_dict()
    assert own.read_bytes() == b""


def test_what_such_a_process_opens_then_is_its_own_in_a_replay(tmp_path: Path) -> None:
    """A replay asks a child process whether it still moves. Nothing of that reads from the program's files, or takes a number that the
    program would have got."""
    content = tmp_path / "orders.txt"
    content.write_text("a-17 b-18 c-19")

    def child() -> int:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        mine = [os.open(content, os.O_RDONLY) for _ in range(20)]
        for _ in range(50):  # it is asked meanwhile, again and again
            sum(range(300_000))
            mine.append(os.open(content, os.O_RDONLY))
        read = [fd for fd in mine if os.lseek(fd, 0, os.SEEK_CUR)]
        return pay(len(read) + (mine != list(range(3, 73))))

    def program() -> int:
        if not (made := os.fork()):
            try:
                os._exit(child())
            finally:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(made, 0)[1])

    with record("job", store=tmp_path / "store") as run:
        assert program() == 0
    with replay(run) as session:
        assert program() == 0
    assert session.report.exact, session.report.as_dict()


@pytest.mark.parametrize("steps", [0, 2])
def test_a_replay_closes_no_file_of_the_program(tmp_path: Path, steps: int) -> None:
    """A program that closes every descriptor, and then has a file of its own under the number of one of ours, keeps it when the replay
    ends, whether or not the recording was read after that."""
    (tmp_path / "orders.txt").write_text("a-17")

    def program(*, closes: bool) -> list[int]:
        pay(1)
        if closes:
            os.closerange(512, 600)
        first = os.open(tmp_path / "orders.txt", os.O_RDONLY)
        mine = [first, *(fcntl.fcntl(first, fcntl.F_DUPFD, 512) for _ in range(40))]
        for _ in range(steps):
            pay(2)
        return mine

    with record("job", store=tmp_path / "store") as run:
        mine = program(closes=False)
    for fd in mine:
        os.close(fd)
    with replay(run) as session:
        mine = program(closes=True)
    assert session.report.exact, session.report.as_dict()
    for fd in mine:
        assert os.pread(fd, 9, 0) == b"a-17"
        os.close(fd)


def test_a_run_whose_tip_can_not_be_kept_is_complete(tmp_path: Path) -> None:
    """A program that gives up its rights during the run, or loses the directory of the tips, ends as it would have, with a warning; its
    run is complete."""
    store = tmp_path / "store"
    run = record("job", store=store)
    opened = run.__enter__()
    pay(1)
    (store / "heads").write_text("in the way")
    with pytest.warns(RuntimeWarning, match="its tip hash was not kept"):
        run.__exit__(None, None, None)
    (store / "heads").unlink()
    assert Store(store).verify(opened.id).state == "complete"


def test_nothing_is_written_into_a_file_that_got_the_descriptor(tmp_path: Path) -> None:
    """A program that closes what is not its own, and opens files: its file stays its own, open, and the log what it was."""
    done.clear()
    mine = os.open(tmp_path / "customers.csv", os.O_RDWR | os.O_CREAT)

    def program() -> None:
        nonlocal number
        with record("job", store=tmp_path / "store") as run:
            opened.append(run)
            pay(1)
            number = journal_of(run)
            # Closed and opened anew in one go: no moment between them in which the journal could notice the first.
            os.dup2(mine, number)
            pay(2)

    number, opened = -1, list[Run]()
    with pytest.raises(LogWriteError, match="another file's"):
        program()
    os.close(mine)
    os.write(number, b"ann\n")
    os.close(number)
    assert (tmp_path / "customers.csv").read_bytes() == b"ann\n"
    assert done == {1: 1}
    assert len(of_type(opened[0], "tool.return")) == 1
