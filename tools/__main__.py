"""``python3 -m tools COMMAND [ARGUMENTS]``: the commands that the README and CONTRIBUTING name.

::

    demo [ARGUMENTS]   install, then run ``tracekit demo``
    test [ARGUMENTS]   install, then run the test suite, three files at a time; ARGUMENTS replace that and go to pytest
    test-installed [ARGUMENTS]
                       the same on a wheel among other packages, as users have it, in an environment of its own
    programs [ROW…]    install, then record and replay real programs, each in an environment of its own (an hour)
    sdk-tests SUITE    the test suite of an SDK or framework: bare, with each test recorded, with each test replayed (half an hour)
    docs [serve]       install, then build the documentation as a site in site/, or serve it and rebuild on changes
    pictures           install, then make the pictures in docs/images anew (needs Chromium)
    lint               install, then build the site and run mypy, import-linter and ruff in parallel
    check              lint and test: everything that must pass before a merge

They need only Python 3.11 or newer: each command creates the virtual environment it uses and installs into it.
"""

from __future__ import annotations

import sys

from tools.environment import ROOT, Environment

#: Three workers that take whole files: fixtures of a file run once, and while one worker waits for a process the others use both cores.
PARALLEL = ("-n", "3", "--dist", "loadfile")
#: The slowest first: they run in parallel.
LINTERS = (
    ("mkdocs", "build", "--site-dir", "build/site"),
    ("mypy",),
    ("lint-imports",),
    ("ruff", "check"),
    ("ruff", "format", "--check"),
)


def demo(*arguments: str) -> None:
    environment = Environment.find()
    environment.install("openai,anthropic")
    environment.script("tracekit", "demo", *arguments)


def test(*arguments: str) -> None:
    environment = Environment.find()
    environment.install("dev")
    environment.script("pytest", *(arguments or PARALLEL))


def test_installed(*arguments: str) -> None:
    environment = Environment.at(ROOT / "build" / "installed")
    environment.install_wheel("dev")
    environment.script("pytest", *(arguments or PARALLEL))


def programs(*arguments: str) -> None:
    environment = Environment.find()
    environment.install("dev")
    environment.run("-m", "tests.programs", *arguments)


def sdk_tests(*arguments: str) -> None:
    from tools.sdk_tests import main

    main(*arguments)


def docs(*arguments: str) -> None:
    environment = Environment.find()
    environment.install("dev")
    environment.script("mkdocs", *(arguments or ("build",)))


def pictures() -> None:
    environment = Environment.find()
    environment.install("dev")
    environment.run("-m", "tools.pictures")


def lint() -> None:
    environment = Environment.find()
    environment.install("dev")
    environment.side_by_side(LINTERS)


def check() -> None:
    lint()
    test()


def main(arguments: list[str]) -> None:
    commands = {
        "demo": demo,
        "test": test,
        "test-installed": test_installed,
        "programs": programs,
        "sdk-tests": sdk_tests,
        "docs": docs,
        "pictures": pictures,
        "lint": lint,
        "check": check,
    }
    if not arguments or arguments[0] not in commands:
        sys.exit((__doc__ or "").strip())
    commands[arguments[0]](*arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
