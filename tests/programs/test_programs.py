"""Programs of other people's packages replay exactly: a sample, and the table of all.

All of them: ``python3 -m tools programs``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import harness, table
from tests.programs.rows import ENVIRONMENTS, ROWS

#: Rows of packages that the suite has anyway.
SAMPLE = ("ollama_chat",)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_real_program_replays_exactly(name: str, tmp_path: Path) -> None:
    """Recorded unchanged, it prints in a replay what it printed, with its server there, and untouched, and with it gone."""
    row = next(row for row in ROWS if row.name == name)
    result = harness.run(row, harness.here(), tmp_path / name)
    assert (result.result, result.reason) == ("exact", "")
    assert result.recorded > 0
    assert result.replayed == 0


def test_the_table_has_every_program() -> None:
    """No program is left out of the table of the last runs, and the page is what the command wrote."""
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert {row.environment for row in ROWS} == ENVIRONMENTS.keys()
    results = table.load()
    assert [row.name for row in ROWS if row.name not in results] == []
    assert table.PAGE.read_text("utf-8") == table.page(results)


def test_every_program_that_is_not_exact_has_its_reason() -> None:
    """Whoever reads the table learns why."""
    found = table.load()
    assert [name for name, one in found.items() if one["result"] != "exact" and not one["reason"]] == []
    assert [
        name for name, one in found.items() if one["result"] == "exact" and (one["replayed"] or not one["versions"])
    ] == []
