"""Secrets that only their name gives away: fields, parameters and headers, and the same in a text (``password=…``)."""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["FIELDS", "HEADERS", "NAME", "holds_secret", "is_field", "key_like", "plain"]

#: Names of fields and parameters whose text is a secret, alone or as the last words of a longer name, however they are written:
#: ``clientSecret`` and ``X-Api-Key`` count as ``client_secret`` and ``x_api_key``.
FIELDS: Final = frozenset(
    """
    password passwd pwd api_key apikey secret secret_key secret_access_key access_key private_key
    access_token refresh_token auth_token id_token session_token security_token bearer_token api_token
    authorization cookie cookies
    """.split()  # noqa: SIM905 - a list would be two screens long
)
#: Names that say it in a pair of name and value: those of headers, and nothing that may be the first of two ordinary words.
HEADERS: Final = frozenset(
    ("authorization", "proxy_authorization", "cookie", "set_cookie", "x_api_key", "x_auth_token", "x_access_token")
)

_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NAMES: Final[dict[str, bool]] = {}
#: Texts that hide nothing, whatever their name.
_HARMLESS: Final = re.compile(
    r"(?i)\*+|•+|x{3,}|\.{2,}|none|null|true|false|yes|no|<[^<>]*>|\$\{[^{}]*\}|\$\w+|\{\{?[^{}]*\}?\}|\[REDACTED:[a-z0-9-]{1,40}\]"
)
_SCHEME: Final = re.compile(r"(?i)(?:bearer|basic|token|apikey|digest|negotiate|aws4-hmac-sha256)\s+\S")
_KEY_LIKE: Final = re.compile(r"(?=\S*[0-9])(?=\S*[A-Za-z])\S{16,}")

#: The same names in a text, each as it is written there; :func:`.secret_kinds.hot` looks for their last letters.
NAME: Final = (
    r"(?:(?i:passw(?:or)?d|(?<![A-Za-z])pwd|api[_-]?key|(?-i:[sS]ecret|SECRET)(?:[_-]?(?:access[_-]?)?key)?"
    r"|(?:private|access)[_-]?key|(?:access|refresh|auth|id|session|security|bearer|api)[_-]?token)|[A-Z0-9]_TOKEN)"
)


def plain(name: str) -> str:
    """A name in small letters, its words joined by ``_``."""
    return _HUMP.sub("_", name).lower().replace("-", "_")


def is_field(name: str) -> bool:
    """Whether the text in a field of this name is a secret."""
    found = _NAMES.get(name)
    if found is None:
        words = plain(name)
        found = words in FIELDS or any(words.endswith("_" + one) for one in FIELDS) or words == "token"
        if len(_NAMES) < 4096:
            _NAMES[name] = found
    return found


def key_like(value: str) -> bool:
    """Letters and digits, sixteen or more, and no space."""
    return _KEY_LIKE.fullmatch(value) is not None


def holds_secret(name: str, value: Any) -> bool:
    """Whether ``value``, under a name that :func:`is_field` takes, is a secret: a text, and no word that only stands for one."""
    if type(value) is not str or not value or _HARMLESS.fullmatch(value):
        return False
    last = plain(name)
    if last.endswith("token") and last[:-5].rstrip("_") == "":
        return key_like(value)  # a token is a word of a model's answer more often
    if last.endswith("authorization"):  # a decision has one, too
        return _SCHEME.match(value) is not None or (
            len(value) >= 8 and " " not in value and any(map(str.isdigit, value))
        )
    return True
