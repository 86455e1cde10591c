"""A corpus on a local Ray cluster, from an object store: ``pytest -m ray`` (needs the extras ``ray`` and ``s3``, and ``moto[server]``)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracekit import regress

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

RUNS = 24

AGENT = """
import os, time
from tracekit import record, traced_tool

@traced_tool(side_effect="read_only")
def look(order):
    return order * 2

@record("shop")
def agent(order):
    return look(order) + 1

@record("shop")
def today(order):
    if order == 13:
        murder()
    return look(order) + (2 if order % 5 == 0 else 1)

def murder():
    # The worker of the cluster: it has started what forked this process. Once.
    try:
        os.close(os.open("../killed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    import ctypes
    with open(f"/proc/{os.getppid()}/stat") as file:
        worker = int(file.read().rpartition(")")[2].split()[1])
    with open("../killed", "w") as file:
        file.write(str(worker))
    ctypes.CDLL(None).kill(worker, 9)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ray") / "here"
    place.mkdir()
    (place / "shop.py").write_text(AGENT)
    record = f"from shop import agent\nfor order in range({RUNS}): agent(order)"
    variables = {**os.environ, "TRACEKIT_DIR": str(place / ".tracekit")}
    subprocess.run([sys.executable, "-c", record], cwd=place, env=variables, check=True)
    return place


@pytest.fixture(scope="module")
def bucket(corpus: Path) -> Iterator[str]:
    """The runs in a bucket that a real S3 server serves; its URL."""
    boto3 = pytest.importorskip("boto3")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    about = {
        "AWS_ENDPOINT_URL": f"http://{host.replace('0.0.0.0', '127.0.0.1')}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in about.items():
            patch.setenv(name, value)
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket="runs")
        for path in (corpus / ".tracekit").rglob("*.jsonl"):
            s3.upload_file(str(path), "runs", f"store/runs/{path.name}")
        try:
            yield "s3://runs/store/runs"
        finally:
            server.stop()


def test_nothing_is_lost_with_a_worker(corpus: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers, of which one is killed in the middle: every run is judged once, as it is judged here."""
    pytest.importorskip("ray")
    monkeypatch.chdir(corpus)
    done: list[tuple[int, int]] = []
    report = regress(
        bucket, entry="shop:today", executor="ray", workers=2, progress=lambda *many: done.append(many), timeout=90
    )
    worker = int((corpus.parent / "killed").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(worker, signal.SIG_DFL)
    assert done == [(number, RUNS) for number in range(RUNS + 1)]
    assert len({run.run for run in report.runs}) == RUNS
    here = regress(str(corpus / ".tracekit"), entry="shop:today", workers=2)
    facts = {run.run: (run.state, run.text, run.group, run.differences) for run in here.runs}
    assert {run.run: (run.state, run.text, run.group, run.differences) for run in report.runs} == facts
    assert report.counts["differs"] == len(range(0, RUNS, 5))
    assert report.counts["same"] == RUNS - report.counts["differs"]


def test_the_examples_of_the_page_run_on_a_cluster_and_from_a_bucket(tmp_path: Path) -> None:
    """Those for which the packages are nowhere else, too: in order, and with the output that the page shows."""
    for name in ("boto3", "moto", "openai", "ray", "s3fs"):
        pytest.importorskip(name)
    root = Path(__file__).parents[2]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TRACEKIT_")}
    variables["PYTHONPATH"] = str(root)
    line = ("-m", "tests.support.pages", str(root / "docs/how-to/regress.md"), str(tmp_path))
    done = subprocess.run(
        [sys.executable, *line, sys.executable, sys.executable],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
