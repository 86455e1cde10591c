"""``python -m tests.programs [ROW…]``: record and replay real programs, each in the environment that it needs, and write the table.

Without a row all are run. Those that are named replace their lines of the table, the others keep theirs. An environment is
removed when its rows are done, unless ``--keep`` says otherwise: some are gigabytes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.programs import harness, table
from tests.programs.rows import ENVIRONMENTS, ROWS
from tests.support.wheel import ROOT, build

#: Where the programs run: in no repository, since one that looks for the repository around it would find this one and change
#: it; nor among temporary files, which a replay leaves to the program.
RUNS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracekit-programs"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools programs", description=__doc__.replace("``", ""))
    parser.add_argument("rows", nargs="*", metavar="ROW", help="a row or an environment of tests/programs/rows.py")
    parser.add_argument("--keep", action="store_true", help="keep the environments for the next time")
    parser.add_argument("--at", type=Path, default=ROOT / ".programs", help="where environments are made")
    options = parser.parse_args()
    names = set(options.rows)
    if unknown := names - {row.name for row in ROWS} - ENVIRONMENTS.keys():
        parser.error(f"no row or environment {', '.join(sorted(unknown))}")
    chosen = [row for row in ROWS if not names or row.name in names or row.environment in names]
    results, commit = table.load(), head()
    with tempfile.TemporaryDirectory() as directory:
        wheel = build(Path(directory))
        for environment in dict.fromkeys(row.environment for row in chosen):
            home = options.at / "environments" / environment
            problem = make(home, wheel, ENVIRONMENTS[environment])
            for row in (row for row in chosen if row.environment == environment):
                if problem:
                    result = harness.Result("not run", f"its packages could not be installed: {problem}")
                else:
                    result = harness.run(row, harness.Interpreter(home / "bin" / "python"), RUNS / row.name)
                result.tracekit = commit
                print(f"{row.name}: {result.result} {result.reason}", flush=True)
                results[row.name] = result.as_json()
                table.save(results)
            if not options.keep:
                shutil.rmtree(home, ignore_errors=True)


def head() -> str:
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def make(home: Path, wheel: Path, requirements: tuple[str, ...]) -> str:
    """Make the environment, or bring its tracekit up to date; what went wrong, or nothing."""
    uv = shutil.which("uv")
    python = home / "bin" / "python"
    stamp = home / "requirements.txt"
    wanted = "\n".join(requirements)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(home, ignore_errors=True)
        command = [uv, "venv", "-q", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
        subprocess.run([*command, str(home)], check=True)
        if problem := install(uv, python, str(wheel), *requirements):
            return problem
        stamp.write_text(wanted)
        return ""
    reinstall = ("--reinstall-package", "tracekit-replay") if uv else ("--force-reinstall",)
    return install(uv, python, "--no-deps", *reinstall, str(wheel))


def install(uv: str | None, python: Path, *what: str) -> str:
    command = (
        [uv, "pip", "install", "-q", "--python", str(python)] if uv else [str(python), "-m", "pip", "install", "-q"]
    )
    # an environment without links into a cache works where the two are on different file systems, too
    done = subprocess.run([*command, *what], capture_output=True, text=True, check=False, env=dict(os.environ))
    return "" if done.returncode == 0 else " ".join(done.stderr.split())[-300:]


if __name__ == "__main__":
    main()
