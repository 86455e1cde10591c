"""What a captured process costs: ``subprocess.run`` inside a run against the bare one, in the same process, turn by turn.

``python benchmarks/processes.py [--rounds N]`` prints the medians of wall time, their ratio, and how often the log was synced.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import tracekit


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _syncs(store: str) -> int:
    """How often the run in ``store`` had to be on the device: before an effect, and after it."""
    (path,) = glob.glob(os.path.join(store, "runs", "*.jsonl"))
    with open(path, "rb") as file:
        entries = [json.loads(line) for line in file]
    effects = {one["seq"] for one in entries if (one.get("meta") or {}).get("side_effect") == "irreversible"}
    return sum(one["seq"] in effects or one.get("step") in effects for one in entries)


def measure(rounds: int) -> dict[str, object]:
    found: dict[str, object] = {
        "python": platform.python_version(),
        "tracekit": tracekit.__version__,
        "machine": platform.platform(),
        "git": subprocess.check_output(["git", "--version"], text=True).strip(),
        "rounds": rounds,
    }
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        os.environ["TRACEKIT_DIR"] = os.path.join(directory, "store")
        subprocess.run(["git", "init", "-q"], check=True)
        for name in ("user.name", "user.email"):
            subprocess.run(["git", "config", name, "nobody"], check=True)
        for number in range(20):
            with open(f"file{number}", "w") as file:
                file.write("x" * 1000)
        subprocess.run(["git", "add", "file0"], check=True)

        def status() -> object:
            return subprocess.run(["git", "status"], capture_output=True, check=True)

        def commit() -> object:
            return subprocess.run(["git", "commit", "-q", "--allow-empty", "-m", "x"], capture_output=True, check=True)

        for name, call in (("git status", status), ("git commit", commit)):
            bare, captured = [], []
            for _ in range(rounds):
                bare += [_timed(call) for _ in range(3)]
                with tracekit.record("benchmark"):
                    call()  # what a run does once
                    captured += [_timed(call) for _ in range(3)]
            os.environ["TRACEKIT_DIR"] = store = os.path.join(directory, name)
            with tracekit.record("benchmark"):
                call()
            found[name] = {
                "bare_ms": round(statistics.median(bare) * 1e3, 3),
                "captured_ms": round(statistics.median(captured) * 1e3, 3),
                "ratio": round(statistics.median(captured) / statistics.median(bare), 3),
                "added_us": round((statistics.median(captured) - statistics.median(bare)) * 1e6),
                "syncs": _syncs(store),
            }
        os.chdir("/")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    json.dump(measure(parser.parse_args().rounds), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
