"""How ``show`` names the threads and tasks of a run: each by a label of its own."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from click.testing import CliRunner, Result

from tracekit import record, traced_tool
from tracekit.cli import main


@traced_tool(side_effect="read_only")
def look(order: str) -> str:
    return order.upper()


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def fetch(order: str) -> str:
    return look(order)


def _wrapped_fn(order: str) -> str:
    """What a library wraps around the function that it was given."""
    return fetch(order)


def outer(work: Any, order: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work, order).result()


def labels(run_id: str) -> dict[str, str]:
    """The label of the lane of each call of ``look``, by its argument."""
    return dict(re.findall(r"look\(order=(\w+)\).*?  \[(.+?)\]$", call("show", run_id).stdout, re.MULTILINE))


def test_each_lane_has_a_label_of_its_own() -> None:
    """Where one has the name already, or a private one, of a library's wrapper, it has a number; its step says what runs there."""
    with record("shop", run_id="shop"), ThreadPoolExecutor(1) as pool:
        for work, order in ((fetch, "a"), (fetch, "b"), (_wrapped_fn, "c"), (_wrapped_fn, "d")):
            pool.submit(outer, work, order).result()
    found = labels("shop")
    assert found["a"] == "fetch#1"
    assert all(re.fullmatch(r"lane \d+", found[order]) for order in "bcd"), found
    assert len({*found.values()}) == 4
    for order, label in found.items():
        (line,) = (one for one in call("show", "shop", "--lane", label).stdout.splitlines() if " tool look(" in one)
        assert f"look(order={order})" in line
    number = re.findall(r"^(\d+) tool look\(order=c\)", call("show", "shop").stdout, re.MULTILINE)[0]
    own = found["c"].partition(" ")[2]
    assert re.search(rf"^  lane +{own}: outer#3/_wrapped_fn#1$", call("show", "shop", number).stdout, re.MULTILINE)
    for name, count in (("fetch", 2), ("_wrapped_fn", 2), ("outer#3/_wrapped_fn#1", 1)):  # by name as well
        assert call("show", "shop", "--lane", name).stdout.count(" tool look(") == count
