"""Server-sent events, as far as the dialects need them."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["events"]


def events(stream: bytes) -> Iterator[tuple[str, bytes]]:
    """The events of a whole stream: the name (``"message"`` where none is given) and the data, its lines joined by ``\\n``."""
    for block in stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n"):
        name, data = "message", []
        for line in block.split(b"\n"):
            field, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if field == b"event":
                name = value.decode("utf-8", "replace")
            elif field == b"data":
                data.append(value)
        if data:
            yield name, b"\n".join(data)
