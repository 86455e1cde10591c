"""The support agent does what it did when ``traces/`` was recorded; no model is asked, and no money moves."""

from __future__ import annotations

import pytest

from examples.support.agent import answer


def test_a_lost_order_is_refunded(tracekit_run, capsys: pytest.CaptureFixture[str]) -> None:
    assert "refunded" in answer("Where is order A-1042?")
    assert ("payment provider" in capsys.readouterr().out) == tracekit_run.recording


@pytest.mark.tracekit
def test_a_large_refund_needs_a_person() -> None:
    assert "person" in answer("I want my money back for B-7.")
