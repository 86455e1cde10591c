"""The trace of each test, and what is done with it: replayed, recorded, continued, replaced."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import shlex
import shutil
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import _pytest.python
import pytest
from _pytest.runner import runtestprotocol

import tracekit
from tracekit.errors import DivergenceError, LiveCallBlockedError, ReplayError, RunStateError, TraceError, TracekitError
from tracekit.integration import (
    READS,
    SINGLES,
    Trace,
    current,
    entered,
    family_of,
    first_entry,
    gives_anything,
    instrumented,
    is_segment,
    is_tracekit,
    lend,
    segments_beside,
    supply_placeholders,
)
from tracekit.testing import no_network, nothing_live

from ._report import refusal_of, report_of

#: The options of the marker for a replay, for a recording, and for both.
_OF_REPLAY: Final = (
    "strict",
    "ignore",
    "guard",
    "allow_hosts",
    "dry_run",
    "writes",
    "live_env",
    "live_files",
    "on_divergence",
)
_OF_RECORD: Final = ("name", "agent", "identity", "input", "metadata", "budget", "durability", "user_modules")
_OF_BOTH: Final = ("redact",)

_SUFFIX: Final = ".jsonl"
#: Characters that are invalid in file names on some system, and the maximum length of a trace's name, so that those of
#: its segments are not too long either.
_FORBIDDEN: Final = re.compile(r"[<>?%*:|\"'/\\\s\x00-\x1f]")
_LONGEST: Final = 180
#: Characters that pytest-recording removes from a name.
_FORBIDDEN_TO_CASSETTES: Final = re.compile(r"[<>?%*:|\"'/\\]")

_RUN: Final = pytest.StashKey["TestRun"]()
#: The function behind the values of ``parametrize``, which pytest represents as a fixture; ``None`` if it has none.
_PARAMETER: Final = getattr(_pytest.python, "get_direct_param_fixture_func", None)


class MissingTraceError(TraceError):
    """A test has no recording, and none is made in this mode."""


class NothingCapturedError(TraceError):
    """A test was recorded, and nothing was captured in it: a replay would have nothing to answer, and fails."""


class InsideAnotherRunError(RunStateError):
    """A test that has a run of its own is already inside another one."""


class TestRun:
    """The run of one test: ``path`` is its trace, ``recording`` whether it is being recorded (otherwise it is
    replayed).

    ``result`` is the recorded result (``None`` while recording), ``set_result(value)`` sets the present one, ``report``
    is the report of the replay, complete when the test has ended.
    """

    __test__ = False

    def __init__(self, item: pytest.Item, path: Path, options: Mapping[str, Any], root: Path, mode: str) -> None:
        self.path = _imported_for(item, path)
        #: Where its recording is stored.
        self._own: Final = path
        self.nodeid: Final = item.nodeid
        self.recording = False
        #: Where a recording is kept until the test has passed.
        self.place: Final = root / f"{path.stem[:80]}-{_short_hash(str(path))}"
        self.mode = mode
        self.options: Final = options
        #: The error that ended its replay, or prevented it.
        self.failure: TracekitError | None = None
        #: What reached the end of the test after the replay had failed: it has passed the lines of the test.
        self.reached: BaseException | None = None
        #: Where the recording of a failed test was left.
        self.kept: Path | None = None
        #: The contexts that remain active until the function-scoped fixtures of the test have ended.
        self.after_replay = ExitStack()
        self.has_fixtures = False
        self._block: Any = None
        self._run: Any = None
        self._scope: Any = None

    def __repr__(self) -> str:
        return f"<TestRun {self.path}>"

    # -- what a test sees ----------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return str(self._run.run_id if not self.recording else self._run.id)

    @property
    def result(self) -> Any:
        return None if self.recording else self._run.result

    @property
    def report(self) -> Any:
        """The report of the replay; ``None`` while recording."""
        return None if self.recording else self._run.report

    def set_result(self, value: Any) -> None:
        self._run.set_result(value)

    def own_fixtures_ended(self) -> None:
        """Leave the contexts when the fixtures of this test alone have ended; those of several tests don't count."""
        self.after_replay.close()

    @property
    def is_inside_another(self) -> bool:
        """Whether it can't begin because a run is open around it."""
        return isinstance(self.failure, InsideAnotherRunError)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was captured in it: in the present recording, or in the trace from which it is replayed."""
        if isinstance(self.failure, NothingCapturedError):
            return True
        try:
            return self.path.exists() and not gives_anything(str(self.path))
        except (TracekitError, OSError, IndexError):
            return False

    # -- its course ----------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._block is not None

    def reset(self, mode: str) -> None:
        """Reset it to the beginning, in another mode."""
        self.mode, self.failure, self.kept, self.reached = mode, None, None, None
        self._block = self._run = self._scope = None

    def rerecord(self) -> TestRun:
        """Return a copy that has not begun: pytest keeps its tests, but this one's trace and steps are freed with the
        caller of its run."""
        other = copy(self)
        other.after_replay, other.has_fixtures, other.recording = ExitStack(), False, False
        other.reset(self.mode)
        return other

    def open(self) -> None:
        """Begin to replay or record, according to the mode."""
        there = self.path.exists()
        if self.mode == "rewrite" and there:
            _remove(self.path)
            there = False
        record = self.mode in ("all", "rewrite") or (not there and self.mode != "none")
        try:
            around = current.get()
            if around is not None:
                raise InsideAnotherRunError(
                    "the test has a run of its own, and another one is open around it (`tracekit run`, or a record() block)",
                    run_id=around.session.run_id,
                )
            if not there and not record:
                raise MissingTraceError("the test has no recording")
            # An imported trace has no end from which to continue.
            goes_on = self.mode == "new_episodes" and not record and not _is_imported(self.path)
            block = self._recording() if record else self._resumption() if goes_on else self._replay()
            with warnings.catch_warnings():
                # On another machine, or with another commit, each test of a suite would warn: the report of a failure
                # says so instead.
                warnings.filterwarnings("ignore", r"tracekit: (replay of|resuming) ", RuntimeWarning)
                self._run = block.__enter__()
        except TracekitError as error:
            self.failure = error
            raise
        self._block = block
        self._scope = current.get()
        lend(self._run if self.recording else block.as_run())

    def _options(self, *names: str) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name in names}

    def _replay(self) -> Any:
        return tracekit.replay(self.path, **self._options(*_OF_REPLAY, *_OF_BOTH))

    def _recording(self) -> Any:
        self.recording = True
        shutil.rmtree(self.place, ignore_errors=True)
        options = self._options(*_OF_RECORD, *_OF_BOTH)
        # A file of its own, and not a run of the store: no directory is made for it and no tip kept, each of which waits
        # for the disk, and the file is moved anyway.
        store = self._store()
        path = Path(store, f"recording{_SUFFIX}")
        return tracekit.record(options.pop("name", self.nodeid), store=store, path=path, **options)

    def _resumption(self) -> Any:
        """Return a resumption of the recording without its end: it is followed up to there, and continued."""
        self.recording = True
        shutil.rmtree(self.place, ignore_errors=True)
        store = self._store()
        with Trace(str(self.path)) as trace:
            run_id = trace.check().run_id
            count = len(trace)
        runs = Path(store) / "runs"
        runs.mkdir(parents=True, mode=0o700)
        lines = self.path.read_bytes().splitlines(keepends=True)
        (runs / f"{run_id}{_SUFFIX}").write_bytes(b"".join(lines[: count - 1]))
        for segment in segments_beside(str(self.path)):
            shutil.copyfile(segment, runs / f"{run_id}{segment[-len(_SUFFIX) - 17 :]}")
        self._followed = count - 1
        return tracekit.resume(
            str(run_id), store=store, original_is_dead=True, **self._options(*_OF_BOTH, "user_modules")
        )

    def _store(self) -> str:
        """Return a store of this test's own, so that what happens once per store happens once per recording. Its
        placeholders are shared."""
        store = self.place
        home = store.parent.parent
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (home / ".gitignore").exists():
            (home / ".gitignore").write_text("*\n")
        store.mkdir(parents=True, mode=0o700)
        secret = home / "secret"
        if secret.exists():
            shutil.copy(secret, store / "secret")
        return str(store)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The block that belongs to the run, even if a test runner's task has lost the run."""
        if self._scope is None or current.get() is not None:
            yield
        else:
            with entered(self._scope):
                yield

    def close(self, error: BaseException | None) -> None:
        """End it when the test ends, with ``error``; raise the replay's failure."""
        block, self._block = self._block, None
        recorded = self.recording
        try:
            with warnings.catch_warnings():
                if error is not None:
                    warnings.filterwarnings("ignore", "tracekit: ", tracekit.errors.InexactReplayWarning)
                block.__exit__(
                    None if error is None else type(error), error, None if error is None else error.__traceback__
                )
        except ReplayError as failure:
            self.failure = failure
            raise
        finally:
            if isinstance(error, ReplayError) and self.failure is None:
                self.failure = error
            if recorded:
                self._keep_or_publish(error is None and self.failure is None)
        if recorded and self.failure is not None and error is None:
            raise self.failure

    def _keep_or_publish(self, passed: bool) -> None:
        """Publish the recording of a passed test, replacing the previous one; that of a failed test stays where it is."""
        own = next((file for file in self._recorded() if not is_segment(str(file))), None)
        if own is None:
            return
        if passed and not gives_anything(str(own)):
            passed, self.failure = False, NothingCapturedError(_NOTHING)
        if not passed:
            self.kept = own
        else:
            self._publish(own)

    def failed_as_expected(self) -> None:
        """Publish the recording of a test that failed according to its ``xfail``, like that of a passed one."""
        assert self.kept is not None
        if gives_anything(str(self.kept)):
            own, self.kept = self.kept, None
            self._publish(own)
        else:
            self.failure = NothingCapturedError(_NOTHING)

    def _recorded(self) -> list[Path]:
        return sorted(file for where in (self.place, self.place / "runs") for file in where.glob(f"*{_SUFFIX}"))

    def _publish(self, own: Path) -> None:
        if self.mode == "new_episodes" and self.path.exists() and not self._continued(own):
            shutil.rmtree(self.place, ignore_errors=True)
            self.recording = False
            return
        secret = self.place.parent.parent / "secret"
        if not secret.exists() and (self.place / "secret").exists():
            shutil.copy(self.place / "secret", secret)
        before, self.path = self.path, self._own
        self.path.parent.mkdir(parents=True, exist_ok=True)
        old = {Path(file) for file in segments_beside(str(self.path))}
        for file in [one for one in self._recorded() if one != own] + [own]:
            name = self.path.stem + file.name[len(own.stem) :]
            _move(file, self.path.with_name(name))
            old.discard(self.path.with_name(name))
        for file in map(Path, segments_beside(str(self.path))):  # seals belong to the previous recording
            file.with_suffix(".seal").unlink(missing_ok=True)
        for file in old:
            file.unlink()
            file.with_suffix(".seal").unlink(missing_ok=True)
        self.path.with_suffix(".seal").unlink(missing_ok=True)
        if before != self.path:  # the imported trace is no longer needed
            before.unlink(missing_ok=True)
        shutil.rmtree(self.place, ignore_errors=True)

    def _continued(self, file: Path) -> bool:
        with Trace(str(file)) as trace:
            kinds = [entry["type"] for entry in trace.entries(first=self._followed + 1)]
        return any(kind in SINGLES or kind in READS or family_of(kind) is not None for kind in kinds)


_NOTHING: Final = "nothing was captured while the test was recorded"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _remove(path: Path) -> None:
    for file in (*map(Path, segments_beside(str(path))), path):
        file.unlink()
        file.with_suffix(".seal").unlink(missing_ok=True)


def _move(file: Path, target: Path) -> None:
    """Move a file atomically: from another file system by a copy next to the target. Whoever may read the tests may
    read it."""
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(file, 0o666 & ~mask)
    try:
        os.replace(file, target)
    except OSError:
        beside = target.with_name(f".{target.name}.new")
        shutil.copy2(file, beside)
        os.replace(beside, target)


def path_of(item: pytest.Item, given: str | os.PathLike[str] | None) -> Path:
    """Return the trace of a test: ``traces/<module>/<test>.jsonl`` next to its file, or the one that its marker names."""
    if given is not None:
        return item.path.parent / given
    owner = getattr(item, "cls", None)
    name = item.name if owner is None else f"{owner.__qualname__}.{item.name}"
    plain = _FORBIDDEN.sub("-", name)
    if plain != name or len(os.fsencode(plain)) > _LONGEST:  # two names must not become one
        plain = os.fsdecode(os.fsencode(plain)[: _LONGEST - 9]).rstrip("\ufffd") + "-" + _short_hash(name)
    return item.path.parent / "traces" / item.path.stem / f"{plain}{_SUFFIX}"


def _imported_for(item: pytest.Item, path: Path) -> Path:
    """Return the trace that answers a test whose own is ``path``: if that does not exist, the one imported from its
    cassette.

    pytest-recording names cassettes in its own way.
    """
    if not path.exists():
        owner = getattr(item, "cls", None)
        cassette = item.name if owner is None else f"{owner.__name__}.{item.name}"
        imported = path.with_name(f"{_FORBIDDEN_TO_CASSETTES.sub('-', cassette)}{_SUFFIX}")
        if imported != path and imported.exists() and _is_imported(imported):
            return imported
    return path


def _is_imported(file: Path) -> bool:
    try:
        with Trace(str(file)) as trace:
            return trace.imported_from is not None
    except (TracekitError, OSError, IndexError):
        return False


def _marked(item: pytest.Item) -> tuple[Path, dict[str, Any]]:
    """Return path and options from the markers of a test; the closest marker takes precedence."""
    path: str | os.PathLike[str] | None = None
    options: dict[str, Any] = {}
    for mark in item.iter_markers("tracekit"):
        given = dict(mark.kwargs)
        if mark.args:
            given.setdefault("path", mark.args[0])
        unknown = given.keys() - {"path", *_OF_REPLAY, *_OF_RECORD, *_OF_BOTH}
        if unknown or len(mark.args) > 1:
            what = ", ".join(sorted(unknown)) or "more than one path"
            raise pytest.UsageError(f"{item.nodeid}: pytest.mark.tracekit does not take {what}")
        path = path if path is not None else given.pop("path", None)
        options = {**given, **options}
    options.pop("path", None)
    return path_of(item, path), options


class Traces:
    """The hooks that run if a test uses the plugin, or the network is blocked for all."""

    def __init__(self, config: pytest.Config, mode: str, done: dict[str, list[str]]) -> None:
        self.config: Final = config
        self.mode: Final = mode
        self.update: Final = bool(config.getoption("tracekit_update", False))
        self._block_network: Final = bool(config.getoption("block_network", False))
        self._hosts: Final = tuple(config.getoption("tracekit_allow_host", ()))
        self._exit: Final = ExitStack()
        home = os.environ.get("TRACEKIT_DIR")
        self._root: Final = (Path(home) if home else config.rootpath / ".tracekit").absolute() / "tests"
        self._supplied: Final[set[str]] = set()
        self._supplied_all = False
        #: The traces that the tests of each module have, and what was done.
        self._used: Final[dict[str, set[str]]] = {}
        self._done: Final = done
        if not instrumented():
            tracekit.instrument()
            self._exit.callback(tracekit.uninstrument)

    # -- collection ------------------------------------------------------------------------------------------------------

    def importing(self, module: Path) -> None:
        """Supply placeholders for the credentials with which the traces of a module were recorded, if known."""
        if self.mode != "none" or self.update:
            return
        for file in sorted((module.parent / "traces" / module.stem).glob(f"*{_SUFFIX}")):
            self._supply(file)

    def _supply(self, file: Path) -> None:
        try:
            meta = first_entry(str(file)).get("meta")
        except (TracekitError, OSError):
            return  # replaying it reports what is wrong
        if not isinstance(meta, dict):
            return
        names = frozenset(name for name in meta.get("credentials") or () if isinstance(name, str))
        imported = "imported" in meta
        if names - self._supplied or (imported and not self._supplied_all):
            self._supplied.update(names)
            self._supplied_all |= imported
            self._exit.callback(supply_placeholders(names))

    def collected(self, item: pytest.Item) -> None:
        path, options = _marked(item)
        hosts = (*options.get("allow_hosts", ()), *self._hosts)
        if hosts:
            options["allow_hosts"] = hosts
        item.stash[_RUN] = run = TestRun(item, path, options, self._root, self.mode)
        self._used.setdefault(str(item.path), set()).update((str(path), str(run.path)))

    def run_of(self, item: pytest.Item) -> TestRun:
        return item.stash[_RUN]

    # -- a test ----------------------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        run = item.stash.get(_RUN, None)
        recorded = run is not None and (self.update or self.mode != "none")
        try:
            if not self._block_network or recorded:
                return (yield)
            with no_network(allow_hosts=self._hosts):
                return (yield)
        finally:
            if run is not None:
                item.stash[_RUN] = run.rerecord()

    @pytest.hookimpl(tryfirst=True, specname="pytest_runtest_protocol")
    def pytest_runtest_protocol_again(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        """Run a test again and record it, with ``--tracekit-update`` if its replay fails.

        With ``--record-mode=new_episodes``, this is done for a test that continues past the end of its recording; one
        that differs from the recording before that would do so again, and its replay fails.
        """
        run = item.stash.get(_RUN, None)
        if run is None or not (self.update or (self.mode == "new_episodes" and run.path.exists())):
            return None
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        run.reset("none")
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        failure = run.failure
        differs_from_a_step = isinstance(failure, DivergenceError) and failure.step is not None
        if failure is not None and (self.update or not differs_from_a_step):
            run.reset("all" if self.update else self.mode)
            item._report_sections.clear()  # what the replay printed
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        run = item.stash.get(_RUN, None)
        if run is None:
            return (yield)
        try:
            return (yield)
        except BaseException as error:
            if run.is_open:
                self._close(run, item, error)
            raise

    @pytest.hookimpl(specname="pytest_runtest_setup")
    def pytest_runtest_setup_of_trace(self, item: pytest.Item) -> None:
        """Fail a test without a recording, if none is to be made, before any fixture does anything; marks that skip it
        come first."""
        run = item.stash.get(_RUN, None)
        if run is not None and run.mode == "none" and not run.path.exists():
            run.open()

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> None:
        """Begin the run before the first function-scoped fixture: what is created for several tests belongs to no run."""
        # A value of `parametrize` is not a fixture of the user: it creates nothing, and ends nothing.
        if fixturedef.scope != "function" or fixturedef.func is _PARAMETER:
            return
        run = request.node.stash.get(_RUN, None)
        if run is not None and not run.is_open:
            run.has_fixtures = True
            request.node.addfinalizer(run.own_fixtures_ended)  # the first of the test: it is called last
            try:
                run.open()
            except BaseException as error:
                # As the fixture's own failure: otherwise the fixture would count as one whose setup has not ended.
                fixturedef.cached_result = (None, fixturedef.cache_key(request), (error, error.__traceback__))
                raise

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        run = item.stash.get(_RUN, None)
        if run is None:
            return (yield)
        if not run.is_open:
            run.open()
        undo = _entering(item, run)
        try:
            result = yield
        except _FailedInTask as carrier:
            self._close(run, item, carrier.error)
            raise carrier.error from None
        except BaseException as error:
            self._close(run, item, error)
            raise
        finally:
            undo()
        self._close(run, item, _kept_by_unittest(item))
        return result

    def _close(self, run: TestRun, item: pytest.Item, error: BaseException | None) -> None:
        if isinstance(error, _FailedInTask):  # kept by a unittest class
            error = error.error
        skipped = isinstance(error, pytest.skip.Exception | pytest.xfail.Exception)
        run.reached = error
        try:
            run.close(error)
        except ReplayError:
            if skipped:
                return
            kept = getattr(item, "_excinfo", None)
            if kept:  # of a unittest class: this failure explains the others
                kept.clear()
            raise
        if run.recording and run.kept is None:
            self._done["recorded"].append(_shown(run.path, self.config))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        run = item.stash.get(_RUN, None)
        if run is None or run.recording:
            return (yield)
        state = item.session._setupstate
        finalizers = state.stack[item][0] if item in state.stack else []
        with run.after_replay:
            if run.has_fixtures:
                run.after_replay.enter_context(nothing_live(allow_hosts=tuple(run.options.get("allow_hosts", ()))))
            try:
                return (yield)
            except (
                ReplayError
            ):  # pytest continues only after an ``Exception``: the other finalizers must run nevertheless
                while finalizers:
                    with suppress(ReplayError, Exception):
                        finalizers.pop()()
                state.teardown_exact(nextitem)
                raise

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        run = item.stash.get(_RUN, None)
        kept = getattr(item, "_excinfo", None)
        excinfo = kept[0] if kept else call.excinfo
        error = None if excinfo is None else excinfo.value
        if run is None:
            if excinfo is not None and isinstance(
                error, LiveCallBlockedError
            ):  # by --block-network, or `tracekit replay`
                call.excinfo = _fail(refusal_of(error, item, self._block_network), excinfo.tb)
                return _with_headline((yield))
            return (yield)
        ours = isinstance(error, TracekitError) and (
            isinstance(error, ReplayError | MissingTraceError) or error is run.failure
        )
        reported = run.failure is not None and call.when == "teardown"
        if ours:
            assert excinfo is not None
            text = report_of(error, run, item)  # type: ignore[arg-type]
            shown = _fail(text, excinfo.tb)
            if kept:
                kept[0] = shown
            else:
                call.excinfo = shown
        elif excinfo is not None:
            _hide_own_frames(excinfo.value)
        report = yield
        if report.skipped and run.kept is not None:
            self._recorded_without_passing(run, item, report)
        elif ours and hasattr(report, "wasxfail"):  # a replay's failure is never the expected one
            del report.wasxfail
            report.outcome = "failed"
        if ours:
            _with_headline(report)
            if reported:  # the test has already failed with it
                report.outcome, report.longrepr = "passed", None
            elif call.when == "setup":
                report.when = "call"  # the replay of the test fails, whichever part was running
            cleaned = [(name, _without(content, run)) for name, content in report.sections]
            report.sections = [(name, content) for name, content in cleaned if content.strip()]
        elif report.failed and run.kept is not None:
            kept, trace = _shown(run.kept, self.config), _shown(run.path, self.config)
            left = f"{trace} is as it was" if os.path.exists(run.path) else f"there is no {trace}"
            lines = [
                f"the test failed while it was recorded, so {left}",
                f"  recorded  {kept}",
                f"  show      tracekit show {shlex.quote(kept)}",
            ]
            report.sections.append(("tracekit", "\n".join(lines)))
        return report

    def _recorded_without_passing(self, run: TestRun, item: pytest.Item, report: pytest.TestReport) -> None:
        """Publish the recording of a test that failed as expected; for one that skipped itself, it is unknown where it
        would end."""
        if not hasattr(report, "wasxfail"):
            self._done["skipped"].append(item.nodeid)
            return
        run.failed_as_expected()
        if run.failure is None:
            self._done["recorded"].append(_shown(run.path, self.config))
        else:
            del report.wasxfail
            report.outcome, report.longrepr = "failed", report_of(run.failure, run, item)

    # -- the end ---------------------------------------------------------------------------------------------------------

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._exit.close()
        self._done["unused"] += self._unused(session)
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output["tracekit"] = self._done

    def _unused(self, session: pytest.Session) -> list[str]:
        """Return the traces next to the modules of this session that no test uses; empty if only a part was collected."""
        arguments = [str(one) for one in session.config.args]
        if any("::" in one for one in arguments) or self.config.getoption("lf", False) or session.testsfailed < 0:
            return []
        found: set[str] = set()
        for module, used in self._used.items():
            place = Path(module).parent / "traces"
            own = place / Path(module).stem
            gone = [one for one in place.iterdir() if one.is_dir() and not _has_module(one)] if place.is_dir() else []
            for directory in (own, *gone):
                for file in directory.glob(f"*{_SUFFIX}"):
                    if not is_segment(str(file)) and str(file) not in used:
                        found.add(_shown(file, self.config))
        return sorted(found)


def _has_module(directory: Path) -> bool:
    return (
        directory.with_name(f"{directory.name}.py").exists()
        or (directory.parent.parent / f"{directory.name}.py").exists()
    )


def _shown(path: Path, config: pytest.Config) -> str:
    shown = os.path.relpath(path, config.invocation_params.dir)
    return str(path) if shown.startswith("..") else shown


def _kept_by_unittest(item: pytest.Item) -> BaseException | None:
    """Return the failure of a test of a ``unittest`` class, which does not raise it."""
    kept = getattr(item, "_excinfo", None)
    return kept[0].value if kept else None


class _FailedInTask(Exception):
    """Carries the failure of a replay out of an asynchronous test: what is no ``Exception`` would end the task in which a
    plugin runs the test, and with it the plugin's event loop."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error: Final = error


def _is_of_replay(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_of_replay, error.exceptions))
    return isinstance(error, ReplayError)


def _entering(item: pytest.Item, run: TestRun) -> Callable[[], None]:
    """Make an asynchronous test run in its run, whichever task a plugin gives it to; return a function that undoes
    that."""
    function = getattr(item, "obj", None)
    if function is None or not inspect.iscoroutinefunction(function) or hasattr(function, "hypothesis"):
        return lambda: None

    @wraps(function)
    async def test(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        with run.inside():
            try:
                return await function(*args, **kwargs)
            except BaseException as error:
                if not _is_of_replay(error):
                    raise
                raise _FailedInTask(error) from None

    instance = getattr(item, "instance", None) if getattr(item, "nofuncargs", False) else None
    if instance is not None:  # of unittest.IsolatedAsyncioTestCase, which looks it up itself
        setattr(instance, item.name, test)
        return lambda: delattr(instance, item.name)
    item.obj = test  # type: ignore[attr-defined]

    def undo() -> None:
        item.obj = function  # type: ignore[attr-defined]

    return undo


def _fail(text: str, traceback: TracebackType | None) -> pytest.ExceptionInfo[BaseException]:
    """Return a failure that shows this text and no frames; a debugger finds the frames of the error itself."""
    error = pytest.fail.Exception(text, pytrace=False)
    try:
        raise error
    except pytest.fail.Exception:
        pass
    if traceback is not None:
        error = error.with_traceback(traceback)
    return pytest.ExceptionInfo.from_exception(error)


def _with_headline(report: pytest.TestReport) -> pytest.TestReport:
    """Leave the first line of a failure for pytest's short summary, which in CI, or with ``-vv``, repeats all of it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        crash.message = crash.message.partition("\n")[0]
    return report


def _hide_own_frames(error: BaseException) -> None:
    """Remove the frames of tracekit from the traceback of an error that is not its own."""
    seen: set[int] = set()
    left: BaseException | None = error
    while left is not None and id(left) not in seen:
        seen.add(id(left))
        frames = []
        traceback = left.__traceback__
        while traceback is not None:
            if not is_tracekit(traceback.tb_frame.f_code.co_filename):
                frames.append(traceback)
            traceback = traceback.tb_next
        for one, following in zip(frames, [*frames[1:], None], strict=True):
            one.tb_next = following
        if frames:
            left.__traceback__ = frames[0]
        left = left.__cause__ or left.__context__


def _without(content: str, run: TestRun) -> str:
    """Return captured output without the replay's message about its failure, which is in the report."""
    failure = run.failure
    if failure is None:
        return content
    brief = failure.fresh()
    brief.next_action = None
    return content.replace(f"tracekit: the replay has failed: {brief}\n", "")
