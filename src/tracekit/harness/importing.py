"""Import of other tools' recordings as runs: cassettes of vcrpy, and recordings of agentloom.

Recordings of pytest-recording are cassettes of vcrpy.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import tracekit

from ..agents import agentloom
from ..errors import TraceError
from ..integration import Exchange, OpenRun, Store, begin, instrumented
from .writer import TraceWriter

__all__ = ["Imported", "cassettes_in", "import_agentloom", "import_cassette"]

#: The only version of the format; before it, a cassette was a list.
_VERSION: Final = 1
_SUFFIXES: Final = (".yaml", ".yml", ".json")


class Imported(NamedTuple):
    """An imported run: its id, its file, its number of exchanges, and how many interactions were left out (telemetry,
    websockets).

    ``warnings`` say what a replay lacks.
    """

    run_id: str
    path: str
    exchanges: int
    left_out: int
    warnings: list[str]


class _Interaction(NamedTuple):
    method: str
    url: str
    request_headers: list[tuple[bytes, bytes]]
    request_body: bytes
    status: int
    reason: str | None
    headers: list[tuple[bytes, bytes]]
    body: bytes


def import_cassette(
    cassette: str | os.PathLike[str],
    target: str | os.PathLike[str] | Store | None = None,
    *,
    run_id: str | None = None,
) -> Imported:
    """Write a cassette of vcrpy (``….yaml``, ``….json``) as a run into ``target``: a store, its directory, or a new
    ``….jsonl`` file.

    Each interaction becomes an HTTP exchange as in a recording, with secrets redacted. The run is marked as imported: a
    replay answers HTTP requests by method, URL and body, in the order of the cassette; clock, random numbers and tools
    are live. Raises ``TraceError`` if the file can't be read as a cassette.
    """
    path = os.fspath(cassette)
    interactions = _read(path)
    if target is not None and not isinstance(target, Store) and os.fspath(target).endswith(".jsonl"):
        target = Store(file=target)
    own = not instrumented()
    if own:  # so that model calls are recognised
        tracekit.instrument()
    try:
        name = os.path.splitext(os.path.basename(path))[0]
        mark = {"from": "vcr", "file": os.path.basename(path), "interactions": len(interactions)}
        run = OpenRun(target, run_id=run_id, name=name, about={"imported": mark})
        try:
            written = sum(_write(run, one) for one in interactions)
        except BaseException as error:
            run.close(error)
            raise
        run.close()
    finally:
        if own:
            tracekit.uninstrument()
    return Imported(run.session.run_id, run.path, written, len(interactions) - written, [*run.warnings])


def _write(run: OpenRun, one: _Interaction) -> bool:
    """Write an exchange like a recording; return whether a recording would have it, too."""
    url = urlsplit(one.url)
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    exchange = begin(
        run.scope,
        one.method,
        url.scheme.encode(),
        url.netloc.encode("idna" if not url.netloc.isascii() else "ascii"),
        target.encode("utf-8"),
        one.request_headers,
        one.request_body,
    )
    if not isinstance(exchange, Exchange):
        return False
    also: dict[str, Any] = {} if one.reason in (None, "", "OK") else {"reason": one.reason}
    jar = exchange.jar(one.headers)
    if jar:
        also["wire"] = {"jar": jar}
    pieces = _pieces(one)
    if pieces is None:
        exchange.whole(one.status, one.headers, one.body, also=also, elapsed=0.0)
        return True
    exchange.head(one.status, one.headers, also=also)
    for piece in pieces:
        exchange.piece(piece)
    exchange.end()
    return True


def _pieces(one: _Interaction) -> list[bytes] | None:
    """Return the events of an answer that was a stream: a cassette has them in one body. ``None`` for any other answer."""
    kind = next((value for name, value in one.headers if name.lower() == b"content-type"), b"")
    if one.status >= 400 or not kind.lower().startswith(_STREAMS):
        return None
    return [piece for piece in _EVENT.findall(one.body) if piece]


#: The types of answers that are streams, and where an event in one ends.
_STREAMS: Final = (b"text/event-stream", b"application/x-ndjson", b"application/jsonl")
_EVENT: Final = re.compile(rb"(?s).*?(?:(?:\r?\n){2}|\r\r|\Z)")


# -- reading -------------------------------------------------------------------------------------------------------------


def _read(path: str) -> list[_Interaction]:
    tree = _load(path)
    if isinstance(tree, list):
        raise _unusable(
            path, "is a cassette of a vcrpy before 1.0", "bring it up to date with `python -m vcr.migration PATH`"
        )
    found = tree.get("interactions") if isinstance(tree, dict) else None
    if not isinstance(found, list):
        raise _unusable(path, "is not a cassette of vcrpy: it has no list of interactions")
    version = tree.get("version", _VERSION)
    if version != _VERSION:
        raise _unusable(path, f"says that its version is {version!r:.40}; {_VERSION} is the one known here")
    interactions = []
    for number, one in enumerate(found, 1):
        try:
            interactions.append(_interaction(one))
        except (ValueError, zlib.error) as error:
            raise _unusable(path, f"can't be read at interaction {number}: {error}") from None
    return interactions


def _load(path: str) -> Any:
    if not os.path.exists(path):
        action = "name a cassette (.yaml, .json), or the directory that contains the cassettes"
        raise _unusable(path, "does not exist", action)
    if not path.endswith(_SUFFIXES):
        raise _unusable(path, "is neither a .yaml nor a .json file")
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise _unusable(path, f"can't be read: {error.strerror}") from None
    if path.endswith(".json"):
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise _unusable(path, f"is not JSON: {error}") from None
    try:
        import yaml
    except ModuleNotFoundError:
        raise TraceError(f"{path} is YAML, and PyYAML is not installed", next_action="pip install PyYAML") from None
    try:
        return yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        text = " ".join(str(error).split())
        raise _unusable(path, f"is no YAML that holds plain data: {text:.300}") from None


def _unusable(path: str, problem: str, action: str = "") -> TraceError:
    return TraceError(
        f"{path} {problem}", next_action=action or "name a cassette as vcrpy writes it, complete and unchanged"
    )


def _interaction(one: Any) -> _Interaction:
    request, response = _part(one, "request"), _part(one, "response")
    method, url = request.get("method"), request.get("uri")
    if not isinstance(method, str) or not isinstance(url, str) or not urlsplit(url).netloc:
        raise ValueError("its request has no method or no uri")
    if "status_code" in response:  # of httpx, written by an older vcrpy
        status, reason = response["status_code"], None
    else:
        about = response.get("status")
        status, reason = (about.get("code"), about.get("message")) if isinstance(about, dict) else (about, None)
    if type(status) is not int:
        raise ValueError("its response has no status")
    sent, headers = _headers(request.get("headers")), _headers(response.get("headers"))
    body = _body(response, "content" if "content" in response else "body")
    return _Interaction(
        method.upper(),
        url,
        sent,
        _body(request, "body"),
        status,
        reason if isinstance(reason, str) else None,
        headers,
        _decoded(body, headers),
    )


def _part(one: Any, name: str) -> dict[str, Any]:
    part = one.get(name) if isinstance(one, dict) else None
    if not isinstance(part, dict):
        raise ValueError(f"it has no {name}")
    return part


def _headers(found: Any) -> list[tuple[bytes, bytes]]:
    """Return headers as they were sent: the value of each is one, or a list of them."""
    if found is None:
        return []
    if not isinstance(found, dict):
        raise ValueError("its headers are not a mapping")
    headers = []
    for name, values in found.items():
        for value in values if isinstance(values, list) else [values]:
            text = value if isinstance(value, bytes) else str(value).encode("utf-8")
            headers.append((str(name).encode("latin-1", "replace"), text))
    return headers


def _body(part: Mapping[str, Any], name: str) -> bytes:
    """Return a body: a text, bytes, ``{"string": …}`` or ``{"base64_string": …}``; or the value of a JSON body in
    ``parsed_body``."""
    if part.get(name) is None and "parsed_body" in part:
        return json.dumps(part["parsed_body"], ensure_ascii=False, separators=(",", ":")).encode()
    found = part.get(name)
    if isinstance(found, dict):
        if isinstance(found.get("base64_string"), str):
            return _base64(found["base64_string"])
        found = found.get("string", found)
    if found is None:
        return b""
    if isinstance(found, bytes):
        return found
    if isinstance(found, str):
        return found.encode("utf-8", "surrogateescape")
    if isinstance(found, list):  # the pieces of a body that was sent as it was produced
        return b"".join(one if isinstance(one, bytes) else str(one).encode() for one in found)
    raise ValueError(f"a body is a {type(found).__name__}")


def _base64(text: str) -> bytes:
    import base64

    return base64.b64decode(text)


# -- content coding --------------------------------------------------------------------------------------------------------


def _decoded(body: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    """Return the body with its content coding undone; a cassette may contain it decoded, and still name the coding."""
    codings = [
        coding.strip()
        for name, value in headers
        if name.lower() == b"content-encoding"
        for coding in value.decode("latin-1").lower().split(",")
    ]
    for coding in reversed(codings):
        undo = _CODINGS.get(coding)
        if undo is None:
            if coding in ("", "identity"):
                continue
            raise ValueError(f"its body is encoded as {coding!r}, which is not known here")
        body = undo(body)
    return body


def _gzip(body: bytes) -> bytes:
    if not body.startswith(b"\x1f\x8b"):
        return body
    parts = []
    while body.startswith(b"\x1f\x8b"):
        one = zlib.decompressobj(47)
        parts.append(one.decompress(body) + one.flush())
        body = one.unused_data
    return b"".join(parts)


def _deflate(body: bytes) -> bytes:
    for bits in (zlib.MAX_WBITS, -zlib.MAX_WBITS):
        try:
            return zlib.decompress(body, bits)
        except zlib.error:
            continue
    return body


def _brotli(body: bytes) -> bytes:
    if _is_text(body):
        return body
    for name in ("brotli", "brotlicffi"):
        try:
            module = __import__(name)
        except ModuleNotFoundError:
            continue
        try:
            return bytes(module.decompress(body))
        except module.error as error:
            raise ValueError(f"its body is not brotli data: {error}") from None
    raise ValueError("its body is compressed by brotli, and that is not installed: pip install brotli")


def _zstandard(body: bytes) -> bytes:
    if not body.startswith(b"\x28\xb5\x2f\xfd"):
        return body
    try:
        import zstandard
    except ModuleNotFoundError:
        raise ValueError(
            "its body is compressed by zstandard, and that is not installed: pip install zstandard"
        ) from None
    try:
        return zstandard.ZstdDecompressor().decompressobj().decompress(body)
    except zstandard.ZstdError as error:
        raise ValueError(f"its body is not zstandard data: {error}") from None


def _is_text(body: bytes) -> bool:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return False
    return all(char.isprintable() or char in "\r\n\t" for char in text)


_CODINGS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstandard,
}


# -- directories -----------------------------------------------------------------------------------------------------------


def cassettes_in(directory: str) -> Iterator[str]:
    """Yield the files below ``directory`` that may be cassettes, in order."""
    for place, inner, files in os.walk(directory):
        inner.sort()
        yield from (os.path.join(place, file) for file in sorted(files) if file.endswith(_SUFFIXES))


# -- recordings of agentloom -------------------------------------------------------------------------------------------


def import_agentloom(
    recording: agentloom.Recording | str | os.PathLike[str],
    target: str | os.PathLike[str] | Store | None = None,
    *,
    run_id: str | None = None,
) -> TraceWriter:
    """Write a recording of agentloom (or the file at a path) as a run, and return its writer, closed.

    Each key has a lane of its own, since the recording keeps no order between them; its turns are model calls there, in
    order. The rest of the file is the run's input, so ``tracekit export --to agentloom`` restores it. To answer a
    program from it, use ``tracekit.agents.agentloom``.
    """
    name = "agentloom"
    if not isinstance(recording, agentloom.Recording):
        name = os.path.splitext(os.path.basename(os.fspath(recording)))[0] or name
        recording = agentloom.load(recording)
    mark = {
        "version": recording.version,
        "lists": [key for key, answer in recording.answers.items() if isinstance(answer, list)],
        "others": recording.others,
        "events": recording.events,
    }
    with TraceWriter(target, run_id=run_id, name=name, input={agentloom.MARK: mark}) as writer:
        for key in recording.answers:
            lane = writer.lane(key)
            for number, turn in enumerate(recording.turns(key), 1):
                step = lane.begin("llm", _model(turn), {"key": key, "turn": number}, {"step_id": key})
                step.done(turn)
    return writer


def _model(turn: dict[str, Any]) -> str:
    model = turn.get("model")
    return model if isinstance(model, str) and model else "agentloom"
