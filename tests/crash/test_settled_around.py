"""A step with an irreversible call done inside is cut off: it is made again only if a person says so, and the call
inside never."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import python
from tracekit import recovery
from tracekit.errors import RecoveryRefusedError

PROGRAM = """
import os, signal, sys
from tracekit import record, replay, resume, traced_tool

def did(what):
    with open("ledger", "a") as file:
        file.write(what + "\\n")
    return what

@traced_tool(side_effect="irreversible", exactly_once=sys.argv[2] == "once")
def pay(cents):
    return did(f"pay {cents}") + " " + os.urandom(4).hex()

@traced_tool(side_effect="reversible")
def checkout(cart):
    receipt = pay(100)
    if sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return did(f"check out {cart}") + receipt

if sys.argv[1] == "die":
    with record("cart", run_id="cart"):
        checkout("books")
with resume("cart"):
    said = checkout("books")
with replay("cart") as session:
    assert checkout("books") == said
assert session.report.exact
"""


class Shop:
    def __init__(self, directory: Path, how: str) -> None:
        self.directory = directory
        self.how = how

    def live(self, what: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return python("-c", PROGRAM, what, self.how, cwd=self.directory, env=environment)

    @property
    def done(self) -> list[str]:
        return (self.directory / "ledger").read_text().splitlines()


@pytest.mark.parametrize("how", ["once", "as often as asked"])
def test_what_stands_inside_is_not_done_again(tmp_path: Path, how: str) -> None:
    """Such a run is refused; if the outer step is settled as not done, it is made again only where a key answers the
    call inside it."""
    shop = Shop(tmp_path, how)
    assert shop.live("die").returncode == -signal.SIGKILL
    (decision,) = recovery.scan()
    (refusal,) = decision.refusals
    assert refusal["code"] == "irreversible_inside"
    refused = shop.live("resume").stderr
    assert "RecoveryRefusedError" in refused
    assert "--done OUTPUT.json" in refused
    outer = refusal["step"]
    if how != "once":
        with pytest.raises(RecoveryRefusedError, match="can't be taken back"):
            recovery.settle("cart", outer, not_done=True, reason="the till was empty")
        assert "RecoveryRefusedError" in shop.live("resume").stderr
        assert shop.done == ["pay 100"]
        return
    recovery.settle("cart", outer, not_done=True, reason="the till was empty")
    went = shop.live("resume")
    assert went.returncode == 0, went.stderr
    assert shop.done == ["pay 100", "check out books"]
