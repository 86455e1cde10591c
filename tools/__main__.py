"""``python3 -m tools COMMAND [ARGUMENTS]``: the commands that the README and CONTRIBUTING name.

::

    demo [ARGUMENTS]   install, then run ``tracekit demo``
    test [ARGUMENTS]   install, then run the test suite, three files at a time; arguments go to pytest in place of that
    programs [ROW…]    install, then record and replay real programs, each in an environment of its own (an hour)
    sdk-tests SUITE    the test suite of an SDK or framework: bare, with each test recorded, with each test replayed (half an hour)
    docs [serve]       install, then build the documentation as a site in site/, or serve it while it is written
    pictures           install, then make the pictures in docs/images anew (needs Chromium)
    lint               install, then the site, mypy, import-linter and ruff side by side
    check              lint and test: everything that has to hold before a merge

Python 3.11 or newer is all that has to be there: each command makes and fills the environment that it needs.
"""

from __future__ import annotations

import sys

from tools.environment import Environment

#: Three workers, each with whole files: what a file makes once is made once, and while one waits for a process two others work.
PARALLEL = ("-n", "3", "--dist", "loadfile")
#: The slowest first: they run side by side.
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
