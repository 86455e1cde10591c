"""The lives of one run: it is recorded, killed, resumed and killed again until it ends or must not go on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import tracekit
from tests.crash.agent import INEXACT, REFUSED, RUN
from tests.support.ledger import effects, marks
from tests.support.oracle import Log
from tests.support.processes import started
from tests.support.recovered import free_decision
from tracekit import recovery
from tracekit.integration import Store
from tracekit.testing import CRASH_POINTS, RECOVERY_POINTS

__all__ = ["IRREVERSIBLE", "Agents", "Commands", "Life"]

ROOT = Path(__file__).parents[2]
IRREVERSIBLE = frozenset(("pay", "settle", "order", "pay_async", "order_async"))
#: Points that a run passes a few times; the others come with each step.
_RARE = frozenset(("before-seal", "after-seal-before-tip", *RECOVERY_POINTS))


class Agents:
    """The process with everything imported from which each life is forked."""

    def __init__(self, directory: Path) -> None:
        self.environment = _environment()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.agent"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.environment, cwd=ROOT,
        )  # fmt: skip
        warm = {"dir": str(directory / "warm"), "mode": "record", "program": "alone", "rounds": 1}
        self.begin({**warm, "durability": "none", "point": None, "nth": 1, "delay": None, "cycle": 0})

    def begin(self, job: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def live(self, job: dict[str, Any]) -> int:
        """Do one job in a child of its own; how that ended."""
        self.begin(job)
        return self.end()

    def end(self) -> int:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        assert answer, "the agents' process has died"
        return int(answer)

    def fresh(self, job: dict[str, Any]) -> int:
        """Do one job in a process that has imported nothing yet."""
        return subprocess.run(
            [sys.executable, "-m", "tests.crash.agent", json.dumps(job)], env=self.environment, cwd=ROOT, check=False
        ).returncode

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


class Commands(Agents):
    """Lives started by the command line, each in a process of its own: the program records itself and does not know that
    it is resumed."""

    def __init__(self) -> None:
        self.environment = _environment()

    def live(self, job: dict[str, Any]) -> int:
        program = ["-m", "tests.crash.agent", json.dumps({**job, "mode": "record", "delay": None})]
        line = program
        if job["mode"] != "record":
            verb = ["recovery", "resume"] if job["mode"] == "resume" else ["replay"]
            tracekit_line = ["-c", "from tracekit.cli import main; main()"]
            line = [*tracekit_line, *verb, RUN, "--store", f"{job['dir']}/store", "--", *program]
        os.makedirs(job["dir"], exist_ok=True)
        with open(f"{job['dir']}/errors", "ab") as errors:
            output = (errors.fileno(), errors.fileno())
            # The process itself is killed, not one that has started it: it is gone when ``wait`` returns.
            with started(*line, cwd=ROOT, env=self.environment, output=output) as fork:
                if job["delay"] is None:
                    return fork.wait()
                death = threading.Timer(0.05 + 10 * job["delay"], fork.kill)
                death.start()
                try:
                    return fork.wait()
                finally:
                    death.cancel()
                    death.join()

    def fresh(self, job: dict[str, Any]) -> int:
        return self.live(job)

    def close(self) -> None:
        pass


def _environment() -> dict[str, str]:
    packages = [str(Path(tracekit.__file__).parents[1]), str(ROOT / "integrations"), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(packages), "PYTHONWARNINGS": "ignore"}


class Life:
    """One run and what became of it; ``kills`` counts how often it died, ``told`` what each life reported."""

    def __init__(self, agents: Agents, directory: Path, seed: int) -> None:
        self.agents = agents
        self.directory = directory
        self.rng = random.Random(seed)
        self.kills = 0
        self.cycle = 0
        self.told: list[str] = [f"seed {seed}"]
        self.program = self.rng.choice(["alone", "alone", "threads", "tasks"])
        self.rounds = self.rng.choice([1, 2, 4])
        self.durability = self.rng.choice(["effects", "effects", "effects", "always", "none"])
        self.store = Store(directory / "store")
        self.path = Path(self.store.path(RUN))

    # -- living ----------------------------------------------------------------------------------------------------------

    def live(self, cycles: int = 6) -> None:
        """Record and be killed; then resume, and be killed, until the run has ended or may not go on."""
        self._once("record", gently=False)
        while self.path.exists():
            log = Log(self.path)
            self.check(log)
            if not self._may_go_on(log):
                break
            self.cycle += 1
            if self._once("resume", gently=self.cycle >= cycles) == 0:
                self.check(Log(self.path))
                break
        else:
            assert not marks(self.directory / "ledger"), self
        if self.path.exists() and Log(self.path).finished:
            self._replay()

    def _once(self, mode: str, *, gently: bool) -> int:
        job = {**self.job(mode), **({} if gently else self._end())}
        end = self.agents.live(job)
        self.told.append(f"{mode} {job['point']} {job['nth']} {job['delay']} -> {end}")
        assert end in (0, -signal.SIGKILL), f"{self}\n{self.errors}"
        self.kills += end != 0
        return end

    def job(self, mode: str) -> dict[str, Any]:
        return {
            "dir": str(self.directory), "mode": mode, "program": self.program, "rounds": self.rounds,
            "durability": self.durability, "point": None, "nth": 1, "delay": None, "cycle": self.cycle,
        }  # fmt: skip

    def _end(self) -> dict[str, Any]:
        """Choose the named point or the instant at which it dies."""
        if self.rng.random() < 0.5:
            return {"delay": self.rng.uniform(0.002, 0.012 + 0.01 * self.rounds)}
        point = self.rng.choice([*CRASH_POINTS, *(RECOVERY_POINTS if self.cycle else ())])
        return {"point": point, "nth": 1 if point in _RARE else self.rng.randrange(1, 8 * self.rounds)}

    # -- judging ---------------------------------------------------------------------------------------------------------

    def check(self, log: Log) -> None:
        """Check what must hold whenever and wherever the process died."""
        verdict = self.store.verify(RUN)
        assert verdict.state == ("complete" if log.finished else "incomplete"), f"{self}: {verdict}"
        assert (verdict.count, verdict.torn_bytes, log.broken) == (len(log.entries), log.torn, None), self
        self._check_observed(log)
        self._check_effects(log)
        self._check_undone()

    def _check_observed(self, log: Log) -> None:
        """Check that nothing the program has seen is missing, or has another value later."""
        seen: dict[tuple[str, int], list[list[Any]]] = {}
        for note in marks(self.directory / "observed"):
            cycles = seen.setdefault((note["tool"], note["number"]), [])
            while len(cycles) <= note["cycle"]:
                cycles.append([])
            cycles[note["cycle"]].append(note["value"])
        for (tool, number), cycles in seen.items():
            calls = log.calls(tool, number=number)
            if tool == "listen":
                streams = [call.chunks for call in calls]  # one that was cut off is made again, as another
                for pieces in cycles:
                    found = any(pieces == chunks[: len(pieces)] for chunks in streams)
                    assert found or not pieces, f"{self}: {tool} {number} was seen as {pieces}, the log has {streams}"
                continue
            recorded = [value for call in calls for value in call.values]
            for values in cycles:
                assert len(values) <= len(recorded), f"{self}: {tool} {number} was seen and is not in the log"
                assert set(values) <= set(recorded), (
                    f"{self}: {tool} {number} was seen as {values}, the log has {recorded}"
                )

    def _check_effects(self, log: Log) -> None:
        """Check that no effect happened before its intention was written (and synced, where it demands that), and no
        irreversible one twice."""
        done = effects(self.directory / "ledger")
        for mark in marks(self.directory / "ledger"):
            tool, number = mark["effect"].split()
            # a second call for the same key has not done it
            calls = [call for call in log.calls(tool, number=int(number)) if not call.duplicate]
            assert len(calls) >= done[mark["effect"]], f"{self}: {mark} has no intention of its own in the log"
            if self.durability != "none" and calls[0].side_effect != "read_only":
                assert mark["synced"] >= calls[0].end, f"{self}: {mark} was done before its intention was on the device"
            if tool in IRREVERSIBLE:
                assert done[mark["effect"]] == 1, f"{self}: {mark} was done twice"

    def _check_undone(self) -> None:
        """Check that each undoable call that was cut off was undone before it was made again, and calls inside another
        one as a whole."""
        standing: set[str] = set()
        for mark in marks(self.directory / "ledger"):
            tool, number = mark["effect"].split()
            if tool == "unbook":
                standing.discard(number)
            elif tool == "book" and int(number) % 1000 < 100:
                assert number not in standing, f"{self}: {mark} was done twice and never undone"
                standing.add(number)

    # -- deciding --------------------------------------------------------------------------------------------------------

    def _may_go_on(self, log: Log) -> bool:
        decision = self._decided(log)
        if decision.decision == "resume":
            return True
        self._refused()
        if log.finished or self.rng.random() < 0.3 or not log.entries:
            return False
        for reason in decision.refusals:
            self._settle(log, reason)
        log = Log(self.path)
        self.check(log)
        return bool(self._decided(log).decision == "resume")

    def _decided(self, log: Log) -> recovery.Decision:
        """Return the decision of tracekit, which must be the same as the oracle's."""
        decision = free_decision(Path(self.store.root))
        opinion = log.opinion()
        assert decision.decision == opinion.decision, f"{self}: {decision} is not {opinion}"
        if not log.finished:
            assert decision.in_doubt == opinion.in_doubt, f"{self}: {decision} is not {opinion}"
        self.told.append(f"{decision.decision} {[reason['code'] for reason in decision.refusals]}")
        return decision

    def _refused(self) -> None:
        """Check that a run that must not go on does nothing and writes nothing."""
        before = self.path.read_bytes(), (self.directory / "ledger").read_bytes()
        assert self.agents.live(self.job("resume")) == REFUSED, f"{self}\n{self.errors}"
        assert (self.path.read_bytes(), (self.directory / "ledger").read_bytes()) == before, self

    def _settle(self, log: Log, reason: dict[str, Any]) -> None:
        """Play the operator, who has looked at the world outside and declares what happened."""
        code = reason["code"]
        if code in ("irreversible_pending", "class_missing"):
            step = log.steps[reason["step"]]
            effect = f"{step.name} {step.input['number']}"
            happened = any(mark["effect"] == effect for mark in marks(self.directory / "ledger"))
        elif code in ("irreversible_inside", "stream_in_progress"):
            step, happened = log.steps[reason["step"]], True
        else:
            return
        how: dict[str, Any] = {"output": f"settled {step.seq}"} if happened else {"not_done": True}
        recovery.settle(RUN, step.seq, **how, reason="looked", by="the test", store=self.store.root)
        self.told.append(f"settled {step.name} {step.seq} {how}")

    def _replay(self) -> None:
        """Check that a run that has ended replays exactly and does nothing."""
        before = (self.directory / "ledger").read_bytes()
        job = {**self.job("replay"), "cycle": self.cycle + 1}
        end = self.agents.fresh(job) if self.rng.random() < 0.1 else self.agents.live(job)
        assert end == 0, (
            f"{self}: the replay {'is not exact' if end == INEXACT else f'ended with {end}'}\n{self.errors}"
        )
        assert (self.directory / "ledger").read_bytes() == before, self

    @property
    def errors(self) -> str:
        path = self.directory / "errors"
        return path.read_text()[-4000:] if path.exists() else ""

    def __str__(self) -> str:
        return f"{self.program}, {self.rounds} rounds, {self.durability}: " + "; ".join(self.told)
