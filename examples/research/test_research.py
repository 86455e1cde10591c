"""The research agent does what it did when ``traces/`` was recorded, its searches side by side; nothing reaches the network."""

from __future__ import annotations

import asyncio

import pytest

from examples.research.agent import research


@pytest.mark.tracekit
def test_an_answer_from_three_searches() -> None:
    assert "waggle" in asyncio.run(research("Why do honey bees dance?"))
