"""What installed packages announce is found as ``importlib.metadata`` finds it, wherever it is, without importing that."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.processes import python
from tracekit._announced import announced

POINTS = """\
# not one
[other.group]
two = json:dumps

[ some.group ]
none = json:dumps
[some.group]
# a comment
one=json:loads
 spaced  =  json.decoder : JSONDecoder.decode  [extra]
module = json
"""


def install(folder: Path, name: str, points: str, suffix: str = "-1.0.dist-info") -> None:
    place = folder / f"{name}{suffix}"
    place.mkdir(parents=True)
    (place / ("METADATA" if "dist" in suffix else "PKG-INFO")).write_text(f"Metadata-Version: 2.1\nName: {name}\n")
    (place / "entry_points.txt").write_text(points)


def zipped(folder: Path) -> Path:
    install(folder / "content", "in_zip", POINTS)
    with zipfile.ZipFile(folder / "packages.zip", "w") as file:
        for path in sorted((folder / "content").rglob("*")):
            file.write(path, path.relative_to(folder / "content"))
    return folder / "packages.zip"


class Finder:
    """Finds packages where nobody else looks."""

    def find_spec(self, *_: object) -> None: ...

    def find_distributions(self, context: importlib.metadata.DistributionFinder.Context) -> list[object]:
        class Elsewhere(importlib.metadata.Distribution):
            def read_text(self, filename: str) -> str | None:
                return {"METADATA": "Name: elsewhere\n", "entry_points.txt": POINTS}.get(filename)

            def locate_file(self, path: object) -> Path:
                raise FileNotFoundError(path)

        return [Elsewhere()] if context.name is None else []


@pytest.fixture(params=["directories", "zip", "egg", "finder"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Packages of one kind on the path, beside those in directories."""
    first, second = tmp_path / "first", tmp_path / "second"
    install(first, "One.Name", POINTS)
    install(first, "old", POINTS, ".egg-info")
    install(first, "without", "")
    install(second, "one__name", "[some.group]\nhidden = json:dumps\n", "-2.0.dist-info")
    (second / "file-1.0.egg-info").write_text("Name: file\n")
    paths = [str(first), str(second), str(tmp_path / "nowhere")]
    if request.param == "zip":
        paths.append(str(zipped(tmp_path)))
    elif request.param == "egg":
        install(tmp_path / "held-1.0.egg", "EGG-INFO", POINTS, "")
        paths.append(str(tmp_path / "held-1.0.egg"))
    elif request.param == "finder":
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    monkeypatch.setattr(sys, "path", [*paths, *sys.path])
    return str(request.param)


@pytest.mark.parametrize("group", ["some.group", "other.group", "tracekit.integrations", "nobody's"])
def test_what_is_announced_is_found_as_python_finds_it(place: str, group: str) -> None:
    """Names, objects and packages are those that ``importlib.metadata.entry_points`` has: of a package that is installed twice the first on
    the path counts, and nothing is missed in a zip file, in an egg or behind another import hook."""
    ours = sorted((one.name, one.value, one.package, one.load()) for one in announced(group) if place)
    theirs = importlib.metadata.entry_points(group=group)
    assert ours == sorted((one.name, one.value, one.dist.name, one.load()) for one in theirs if one.dist is not None)
    assert len({package for _, _, package, _ in ours}) == {
        "some.group": 2 + (place != "directories"),
        "other.group": 2 + (place != "directories"),
        "tracekit.integrations": 1,
    }.get(group, 0)


def test_python_is_not_asked_without_need() -> None:
    """Where all is in directories, ``importlib.metadata`` is not imported."""
    code = (
        "import sys; from tracekit._announced import announced\n"
        "print(len(announced('tracekit.integrations')), 'importlib.metadata' in sys.modules)"
    )
    count, imported = python("-c", code, fresh=True).stdout.split()
    assert int(count) > 10
    assert imported == "False"
