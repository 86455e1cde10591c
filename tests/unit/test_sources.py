"""Whose a source file is."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracekit
import tracekit_httpx
import tracekit_pytest
from tracekit.integration import is_tracekit, is_user_code


@pytest.mark.parametrize("module", [tracekit, tracekit.integration, tracekit_httpx, tracekit_pytest])
def test_tracekit_and_its_integrations_are_not_the_users_code(module: object) -> None:
    """A file of tracekit or of an integration is tracekit's, wherever it is installed."""
    file = module.__file__  # type: ignore[attr-defined]
    assert is_tracekit(file)
    assert is_tracekit(os.path.dirname(file))
    assert not is_user_code(file)


@pytest.mark.parametrize("package", ["tracekit_mine", "tracekit_replay"])
def test_an_integration_of_somebody_else_is_tracekits_too(package: str) -> None:
    """An installed package called ``tracekit_…`` is an integration."""
    assert is_tracekit(f"/usr/lib/python3/dist-packages/{package}/__init__.py")
    assert is_tracekit(f"/srv/ada/.venv/lib/python3.12/site-packages/{package}/__init__.py")


@pytest.mark.parametrize(
    "path",
    [
        "/srv/ada/integrations/tracekit_demo/agent.py",
        "/srv/ada/tracekit/agent.py",
        "/srv/ada/tracekit_demo/agent.py",
    ],
)
def test_a_program_is_the_users_whatever_its_directory_is_called(path: str) -> None:
    """Directories of a program may be called as tracekit's are: its lines are in messages all the same."""
    assert not is_tracekit(path)
    assert is_user_code(path)


def test_python_and_packages_are_neither() -> None:
    """The standard library and installed packages are not the user's code, and not tracekit's."""
    for file in (json.__file__, pytest.__file__, "<frozen importlib._bootstrap>"):
        assert not is_tracekit(file)
        assert not is_user_code(file)


@given(
    start=st.sampled_from(["", "/", "//", *(os.path.dirname(module.__file__) for module in (json, pytest, tracekit))]),
    parts=st.lists(st.sampled_from(["", ".", "..", "../..", "../../..", "a", ".venv", "..."]), max_size=5),
)
def test_a_path_says_the_same_in_whatever_way_it_is_written(start: str, parts: list[str]) -> None:
    """Steps to a directory above, and steps to nowhere, lead to where Python has them lead."""
    path = "/".join([start, *parts, "b.py"])
    there = os.path.abspath(path)
    assert (is_tracekit(path), is_user_code(path)) == (is_tracekit(there), is_user_code(there))
