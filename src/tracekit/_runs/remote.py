"""Stores and runs at a URL (``s3://``, ``gs://`` …): downloaded, and read in a temporary directory.

The directory is this process's.

Only what is needed is downloaded: the files of one run, or every run of a store. Nothing is ever uploaded.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, Final

from .._journal.store import SUFFIX, Store, before_last, file_name, is_segment, is_url
from .._lazy import expression
from .._values import exception_text
from ..errors import RunStateError, TraceError

__all__ = ["as_named", "fetched_run", "fetched_store", "is_url", "runs_at"]

#: A name that is accepted: of a file in one directory, whatever a server says.
_NAME: Final = expression(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}", re.ASCII)

#: Passes the items on; shows the progress.
Progress = Callable[[list[str], str], Iterable[str]]


#: The temporary directories, each with the URL of what was downloaded into it.
_FETCHED: Final[dict[str, str]] = {}


def as_named(text: str) -> str:
    """Return ``text``, a message or data, with the URL of what was downloaded in place of the temporary path, which is
    gone when somebody reads it."""
    for directory, url in _FETCHED.items():
        text = text.replace(directory, url)
    return text


def fetched_store(url: str, run: str | None = None, progress: Progress = lambda items, what: items) -> Store:
    """Return the store at ``url`` as a local one: all of it, or, with ``run``, what is needed to find and read that
    run.

    Raises ``TraceError`` if there is no store.
    """
    remote = _Remote(url.rstrip("/"))
    names = remote.names("runs")
    if not names:
        raise TraceError(
            f"there is no store at {url} (it has no directory 'runs'), so nothing was examined",
            next_action="name the directory that contains 'runs' and 'heads'",
        )
    root = _directory(remote.url)
    last = None if run is None else before_last(run)
    wanted = names if run is None or last is not None else [name for name in names if name.startswith(run)]
    runs = [name for name in wanted if name.endswith(SUFFIX) and not is_segment(name)]
    if last == 0 and len(runs) > 1:
        newest = file_name(remote.newest("runs", runs)).stem
        wanted = [name for name in names if name.startswith(newest)]
    stems = {file_name(name).stem for name in wanted}
    files = [f"runs/{name}" for name in wanted]
    files += [f"heads/{name}" for name in remote.names("heads") if name in stems]
    for directory in ("settled", "keys"):
        files += [
            f"{directory}/{name}"
            for name in remote.names(directory)
            if directory == "keys" or name.startswith(tuple(stems))
        ]
    for file in progress(files, f"fetching from {url}"):
        remote.get(file, os.path.join(root, file))
    os.makedirs(os.path.join(root, "runs"), mode=0o700, exist_ok=True)
    if run is not None and last is None:  # the others, so that an ambiguous or misspelled id is reported as usual
        for name in set(names) - set(wanted):
            open(os.path.join(root, "runs", name), "xb").close()
    return Store(root)


def fetched_run(url: str) -> str:
    """Download the trace file at ``url`` with those of its child processes and its kept tip; return the local path."""
    directory, _, name = url.rpartition("/")
    stem = file_name(name).stem
    if directory.rpartition("/")[2] == "runs":
        return fetched_store(directory.rpartition("/")[0], stem).find(stem)
    remote, root = _Remote(directory), _directory(directory)
    names = [
        one
        for one in remote.names("")
        if one == name or (one.endswith((SUFFIX, ".seal")) and one.startswith(f"{stem}."))
    ]
    for one in names if name in names else [name]:
        remote.get(one, os.path.join(root, one))
    return os.path.join(root, name)


def runs_at(url: str) -> list[str]:
    """Return the URLs of the runs at ``url``: a trace, a store or another directory of traces, or a pattern (``*``)."""
    if not any(sign in url for sign in "*?["):
        if url.endswith(SUFFIX):
            return [url]
        directory = url.rstrip("/")
        remote = _Remote(directory)
        within = "runs" if (names := remote.names("runs")) else ""
        found = [
            f"{directory}/{within}/{name}" if within else f"{directory}/{name}" for name in names or remote.names("")
        ]
    else:
        found = _Remote(url).matching()
    found = [one for one in found if one.endswith(SUFFIX)]
    return sorted(one for one in found if not is_segment(one))


def _directory(url: str) -> str:
    """Return a directory of this process alone for what is at ``url``, removed when the process ends in any way."""
    import shutil
    import tempfile

    made = tempfile.mkdtemp(prefix="tracekit-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    _FETCHED[made] = url
    return made


#: What fsspec needs for a URL of each kind.
_CLIENTS: Final = {"s3": ("s3fs",), "s3a": ("s3fs",), "gs": ("gcsfs",), "gcs": ("gcsfs",)}


class _Remote:
    """A directory at a URL."""

    def __init__(self, url: str) -> None:
        self.url: Final = url
        scheme = url.partition(":")[0]
        try:
            fsspec: Any = import_module("fsspec")
        except ModuleNotFoundError:
            raise RunStateError(
                f"{url} is a URL, and the package fsspec is not installed",
                next_action=" ".join(("pip install fsspec", *_CLIENTS.get(scheme, ()))),
            ) from None
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            clients = _CLIENTS.get(scheme)
            how = f"pip install {' '.join(clients)}" if clients else "install what it names"
            raise RunStateError(f"{url} can't be read: {error}", next_action=how) from None
        except ValueError as error:
            raise TraceError(
                f"{url} can't be read: {error}", next_action="use s3://, gs:// or another protocol of fsspec"
            ) from None
        except Exception as error:  # some protocols connect here
            raise self._unreadable("", error) from error

    def _place(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def _listed(self, directory: str) -> Iterator[dict[str, Any]]:
        try:
            found = self._files.ls(self._place(directory), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return
        except Exception as error:
            raise self._unreadable(directory, error) from error
        for one in found:
            name = str(one["name"]).rpartition("/")[2]
            if one.get("type") == "file" and _NAME.fullmatch(name):
                yield {**one, "name": name}

    def names(self, directory: str) -> list[str]:
        """Return the names of the files in a directory; empty if it does not exist."""
        return sorted(str(one["name"]) for one in self._listed(directory))

    def matching(self) -> list[str]:
        """Return the URLs of the files that match its own URL, a pattern."""
        try:
            return [str(self._files.unstrip_protocol(one)) for one in self._files.glob(self._root)]
        except Exception as error:
            raise self._unreadable("", error) from error

    def newest(self, directory: str, names: list[str]) -> str:
        """Return the most recently written of these files: the run that ended, or continued, last."""
        keys = ("LastModified", "mtime", "updated", "created")
        stamps = {
            one["name"]: str(next((one[key] for key in keys if one.get(key)), "")) for one in self._listed(directory)
        }
        return max(names, key=lambda name: (stamps.get(name, ""), name))

    def get(self, name: str, target: str) -> None:
        """Download a file."""
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        try:
            self._files.get_file(self._place(name), target)
        except FileNotFoundError:
            raise TraceError(
                f"there is no trace {self.url}/{name}",
                next_action="`tracekit list --store URL` lists runs",
            ) from None
        except Exception as error:
            raise self._unreadable(name, error) from error

    def _unreadable(self, name: str, error: Exception) -> TraceError:
        return TraceError(
            f"{self.url}/{name} can't be read: {exception_text(error)}".rstrip("/"),
            next_action="see whether the address is right, and whether this user has credentials for it",
        )
