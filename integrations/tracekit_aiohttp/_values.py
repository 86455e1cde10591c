"""What ``aiohttp``'s exceptions consist of as values: URLs, and headers without credentials."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tracekit.integration import Answer, message, raw_headers, register_codec, shown

__all__ = ["teach"]


def teach(yarl: ModuleType, multidict: ModuleType) -> None:
    """Record URLs and headers anywhere in a value: ``ClientResponseError.request_info``, for example."""

    def encode_headers(headers: Any) -> Any:
        return message(None, raw_headers(headers), None)["headers"]

    def decode_headers(recorded: Any) -> Any:
        headers = Answer.of_message({"headers": recorded}).headers
        return multidict.CIMultiDictProxy(multidict.CIMultiDict(headers))

    register_codec(yarl.URL, "yarl.URL", lambda url: shown(str(url)), lambda text: yarl.URL(text, encoded=True))
    register_codec(multidict.CIMultiDictProxy, "multidict.CIMultiDictProxy", encode_headers, decode_headers)
