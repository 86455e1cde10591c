"""Secrets whose very text is known: the values of secret environment variables, and credentials that an SDK was seen to send."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import quote, unquote

from .secret_fields import key_like

__all__ = ["LEAST", "VARIABLES", "KnownSecrets", "of_environment", "of_header"]

#: A shorter text is not looked for: it would be found in ordinary words.
LEAST: Final = 8
#: How many credentials are learned while a run goes on.
_MOST: Final = 256

#: The last words of an environment variable's name that say its value is a secret.
VARIABLES: Final = (
    "PASSWORD", "PASSWD", "PWD", "PASSPHRASE", "SECRET", "SECRET_KEY", "API_KEY", "APIKEY", "ACCESS_KEY", "PRIVATE_KEY", "TOKEN",
    "PASS", "CREDENTIAL", "CREDENTIALS", "AUTHORIZATION",
)  # fmt: skip
_VARIABLE: Final = re.compile(rf"(?i)(?:.*_)?(?:(?:PG|MYSQL_?)?(?:{'|'.join(VARIABLES)}))").fullmatch
_KEY: Final = re.compile(r"(?i).*_KEY").fullmatch
_IN_URL: Final = re.compile(r"://[^\s/@:?#\"']{0,200}:([^\s/@\"']{1,500})@")
_UNSAFE: Final = re.compile(r'["\\\x00-\x1f]')
#: Words that stand in the place of a secret, paths, and addresses without a password.
_NO_SECRET: Final = re.compile(
    r"(?i)(?:\*+|x+|\.+|-+|0+|<.*>|\$.*|\{.*\}|true|false|none|null|enabled|disabled|required|optional|default|password|passw0rd"
    r"|change.?me|placeholder|undefined|anonymous|unused|.*your.*(?:key|token|secret|password).*"
    r"|(?:test|dummy|fake|example|mock)[-_ ]?(?:api)?[-_ ]?(?:key|token|secret|password)?\d{0,3}"
    r"|(?:sk-)?(?:not?|without)[-_ ].*|tracekit-replay-no-key|ollama|lm-studio|\[REDACTED:.*\])"
    r"|(?:~|\.{0,2})/.*|[A-Za-z]:\\.*|https?://[^@]*",
    re.DOTALL,
)


def _worth(value: str) -> bool:
    """Whether a text can be looked for everywhere: long enough, no placeholder, no path, no sentence."""
    return (
        LEAST <= len(value) <= 16384
        and not _NO_SECRET.fullmatch(value)
        and value.count(" ") <= 4
        and value.isprintable()
    )


class KnownSecrets:
    """Texts that are secrets, each with its kind, longest first. Immutable: :meth:`plus` makes another one.

    ``needles`` stand in any encoded JSON (read as Latin-1) that holds one of them.
    """

    __slots__ = ("needles", "texts")

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts: Final = dict(sorted(texts.items(), key=lambda item: (-len(item[0]), item[0])))
        self.needles: Final = tuple(dict.fromkeys(map(_needle, self.texts)))

    def __bool__(self) -> bool:
        return bool(self.texts)

    def plus(self, found: Iterable[tuple[str, str]]) -> KnownSecrets:
        """These and those that are found, where one is new."""
        texts = dict(self.texts)
        for value, kind in found:
            if len(texts) < _MOST or kind == "environment":
                for form in _forms(value):
                    texts.setdefault(form, kind)
        return self if len(texts) == len(self.texts) else KnownSecrets(texts)

    def within(self, text: str) -> bool:
        return any(known in text for known in self.texts)

    def looker(self, first: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
        """``first``, and then whether encoded JSON may hold one of these."""
        if len(self.needles) == 1:
            find = re.compile(re.escape(self.needles[0]).encode("latin-1")).search
            return lambda data: first(data) or find(data) is not None
        needles = self.needles

        def look(data: bytes) -> bool:
            if first(data):
                return True
            text = str(data, "latin-1")
            return any(needle in text for needle in needles)

        return look

    def spans(self, text: str) -> Iterator[tuple[int, int, str]]:
        for known, kind in self.texts.items():
            start = text.find(known)
            while start >= 0:
                yield start, start + len(known), kind
                start = text.find(known, start + 1)

    def beginning(self, window: str) -> tuple[int, int, int, str] | None:
        """What at the end of a text may be the beginning of one: where it stands (twice), where it ends, its kind."""
        for known, kind in self.texts.items():
            start = window.rfind(known[:6], max(0, len(window) - len(known)))
            if start >= 0 and known.startswith(window[start:]):
                return start, start, len(window), kind
        return None


def _needle(value: str) -> str:
    """What of a text looks the same in JSON however often it is encoded."""
    return max(_UNSAFE.split(value), key=len).encode().decode("latin-1")


def _forms(value: str) -> set[str]:
    """A text as it is, in a URL, and in JSON."""
    return {value, quote(value, safe=""), json.dumps(value, ensure_ascii=False)[1:-1]}


def of_environment(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The secrets in environment variables: the values of secret names, and passwords in URLs."""
    for name, value in variables.items():
        if "://" in value:
            for match in _IN_URL.finditer(value):
                for password in {match[1], unquote(match[1])}:
                    if _worth(password):
                        yield password, "environment"
        elif (_VARIABLE(name) or (_KEY(name) and key_like(value))) and _worth(value):
            yield value, "environment"


def of_header(value: str) -> Iterator[tuple[str, str]]:
    """The secrets in the value of a credential header: without its scheme; of ``Basic`` the password, too."""
    scheme, _, rest = value.strip().rpartition(" ")
    if not _worth(rest):
        return
    yield rest, "credential"
    if scheme.lower() == "basic":
        try:
            password = b64decode(rest, validate=True).decode().partition(":")[2]
        except ValueError:
            return
        if _worth(password):
            yield password, "credential"
