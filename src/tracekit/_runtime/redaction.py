"""Removes secrets from values before they are hashed and written."""

from __future__ import annotations

import json
import os
import re
from base64 import b32encode, b64decode
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from .. import _reality
from .._journal import keys as journal_keys
from .._journal.entry import info_of, meta_of
from .._journal.vault import Vault, has_vault
from .._lazy import expression
from .._native import decoded
from .._values import decoding, dumps, to_json
from ..errors import TraceError, TracekitError
from .secrets import (
    OPAQUE_FIELDS,
    SHORTEST,
    Span,
    Strength,
    find,
    form_of,
    holds_secret,
    key_like,
    look,
    names_secret,
    passing,
)

if TYPE_CHECKING:
    from .._journal.reader import Trace

__all__ = [
    "STAND_IN",
    "KnownSecrets",
    "Mark",
    "Originals",
    "Placeholders",
    "Redactor",
    "StreamRedactor",
    "below",
    "environment_variables",
    "marks_of",
    "of_header",
    "patterns_of",
]

# -- known secrets -----------------------------------------------------------------------------------------------------
#
# Secrets whose exact text is known: values of secret environment variables, and credentials that an SDK has sent.

#: Shorter texts are not searched for: they would be found in ordinary words.
LEAST: Final = 8
#: How many credentials are learned during a run.
_MOST: Final = 256

_IN_URL: Final = expression(r"://[^\s/@:?#\"']{0,200}:([^\s/@\"']{1,500})@")
_UNSAFE: Final = expression(r'["\\\x00-\x1f]')
#: Words used in place of a secret.
_NO_SECRETS: Final = frozenset(
    """
    true false none null enabled disabled required optional default password passw0rd changeme placeholder undefined anonymous unused
    ollama lm-studio tracekit-replay-no-key
    """.split()  # noqa: SIM905
)
_WITHOUT: Final = tuple(f"{word}{sign}" for word in ("no", "not", "without") for sign in "-_ ")
_FOR_TESTS: Final = ("test", "dummy", "fake", "example", "mock")
_FOR_TESTS_ONLY: Final = expression(
    rf"(?:{'|'.join(_FOR_TESTS)})[-_ ]?(?:api)?[-_ ]?(?:key|token|secret|password)?\d{{0,3}}"
)


def _no_secret(value: str) -> bool:
    """Return whether a text is only a substitute for a secret (``changeme``, ``<your key>``), a path, or an address
    without a password."""
    text = value.lower()
    if text in _NO_SECRETS or (text[:1] in ("*", "x", ".", "-", "0") and not text.strip(text[0])):
        return True
    if text.startswith(("$", "/", "~/", "./", "../")) or text[:1] + text[-1:] in ("<>", "{}"):
        return True
    if text.startswith(("http://", "https://")) and "@" not in text:
        return True
    _, your, after = text.partition("your")
    if your and any(word in after for word in ("key", "token", "secret", "password")):
        return True
    return (
        (text[1:3] == ":\\" and "a" <= text[0] <= "z")
        or text.removeprefix("sk-").startswith(_WITHOUT)
        or (len(text) == 9 and text.startswith("change") and text.endswith("me"))
        or (text.startswith(_FOR_TESTS) and _FOR_TESTS_ONLY.fullmatch(text) is not None)
    )


def _worth(value: str) -> bool:
    """Return whether a text can be searched for everywhere: long enough, and not a substitute, a path or a sentence."""
    return LEAST <= len(value) <= 16384 and not _no_secret(value) and value.count(" ") <= 4 and value.isprintable()


#: How many characters at the end of a text count as the beginning of a secret.
_START: Final = 6


class KnownSecrets:
    """Texts that are secrets, each with its kind, longest first. Immutable: ``plus`` creates another object.

    Any encoded JSON (read as Latin-1) that contains one of them contains one of the ``needles``; any text that contains
    one, or ends in its beginning, contains one of ``starts``.
    """

    __slots__ = ("needles", "starts", "texts")

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts: Final = dict(sorted(texts.items(), key=lambda item: (-len(item[0]), item[0])))
        self.needles: Final = tuple(dict.fromkeys(map(_needle, self.texts)))
        self.starts: Final = tuple({known[:_START] for known in self.texts})

    def __bool__(self) -> bool:
        return bool(self.texts)

    def plus(self, found: Iterable[tuple[str, str]]) -> KnownSecrets:
        """Return these secrets and those found; the same object if none is new."""
        texts = dict(self.texts)
        for value, kind in found:
            if len(texts) < _MOST or kind == "environment":
                for form in _forms(value):
                    texts.setdefault(form, kind)
        return self if len(texts) == len(self.texts) else KnownSecrets(texts)

    def within(self, text: str) -> bool:
        return any(known in text for known in self.texts)

    def looker(self, first: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
        """Return a function that checks ``first``, and then whether encoded JSON may contain one of these."""
        if len(self.needles) == 1:
            needle = self.needles[0].encode("latin-1")
            return lambda data: first(data) or needle in data
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
        """Return what may be the beginning of a secret at the end of a text: its start (twice), its end, its kind."""
        for known, kind in self.texts.items():
            start = window.rfind(known[:_START], max(0, len(window) - len(known)))
            if start >= 0 and known.startswith(window[start:]):
                return start, start, len(window), kind
        return None


def _needle(value: str) -> str:
    """Return a part of a text that looks the same in JSON however often it is encoded."""
    return max(_UNSAFE.split(value), key=len).encode().decode("latin-1")


_NO_SECRET_KNOWN: Final = KnownSecrets({})

#: Without these, a key consists of letters and digits, which are written the same in URLs and in JSON.
_SIGNS_OF_KEYS: Final = dict.fromkeys(map(ord, "-._~"))


def _forms(value: str) -> set[str]:
    """Return a text as it is, URL-encoded, and as in JSON."""
    if value.isascii() and value.translate(_SIGNS_OF_KEYS).isalnum():
        return {value}
    from urllib.parse import quote

    return {value, quote(value, safe=""), json.dumps(value, ensure_ascii=False)[1:-1]}


def environment_variables() -> dict[str, str]:
    """Return the environment variables of this process as a dictionary of its own, decoded in one go where possible."""
    variables: Any = os.environ  # a test may put a plain dictionary there
    kept = getattr(variables, "_data", None) if os.name == "posix" else None
    return dict(variables) if kept is None else dict(decoded(kept))


@lru_cache(maxsize=1)
def _known_in(environment: tuple[tuple[str, str], ...]) -> KnownSecrets:
    """Return the secrets in environment variables, which most runs of a process find the same."""
    return _NO_SECRET_KNOWN.plus(_of_environment(environment))


def _of_environment(variables: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the secrets in environment variables: values of secret names, and passwords in URLs."""
    for name, value in variables:
        if "://" in value:
            for match in _IN_URL.finditer(value) if "@" in value else ():
                from urllib.parse import unquote

                for password in {match[1], unquote(match[1])}:
                    if _worth(password):
                        yield password, "environment"
        elif len(value) >= LEAST and _of_variable(name, value) and _worth(value):
            yield value, "environment"


def _of_variable(name: str, value: str) -> bool:
    """Return whether an environment variable's name says that its value is a secret."""
    strength = names_secret(name)
    return strength not in ("", "key") or (strength == "key" and key_like(value))


def of_header(value: str) -> Iterator[tuple[str, str]]:
    """Yield the secrets in the value of a credential header: without its scheme; for ``Basic``, the password, too."""
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


# -- placeholders ------------------------------------------------------------------------------------------------------
#
# The replacements of secrets: one text per value, the same in every run of a store. Its characters come from an HMAC of
# the value under the store's secret. If the value had a known format, the placeholder has it, too, so that format
# checks accept it; if the value has a character that a bearer token can't have, so has the placeholder, so that both
# are refused alike.
#
# Text alone does not make a placeholder: those of a trace are marked in its entries, as ``[pointer, start, text]``.

#: The position of a placeholder in an entry: the JSON pointer of the text (prefixed with ``#`` for its name), the
#: offset in the text, the placeholder.
Mark = list[Any]

#: What a replay gives to an SDK that does not start without a key, if the process has none.
STAND_IN: Final = "tracekit-replay-no-key"
_CORE: Final = expression("REDACTED_?([A-Z2-7]{8})")
_TAG: Final = 16
#: The header and payload of a token that declares itself as none.
_TOKEN: Final = "eyJhbGciOiJub25lIn0.eyJSRURBQ1RFRCI6MX0."


@cache
def _key_of_process() -> bytes:
    return _reality.urandom(32)


def store_key(root: str, *, create: bool) -> Callable[[], bytes]:
    """Return a function that returns the key of a store's placeholders. If the store can't keep one, the process has
    its own."""

    def key() -> bytes:
        keys = journal_keys.Keys(root)
        try:
            if create or keys.known_by() is not None:
                return bytes.fromhex(keys.digest(b"placeholders"))
        except (OSError, TracekitError):
            pass
        return _key_of_process()

    return key


class Placeholders:
    """The placeholders of one run, with the values they stand for. Thread-safe."""

    def __init__(self, key: Callable[[], bytes] = _key_of_process) -> None:
        self._make_key: Final = key
        self._key: bytes | None = None
        self._of: Final[dict[str, str]] = {}
        self._value: Final[dict[str, str]] = {}
        #: Placeholders that turned out to stand for another value than the one they are derived from.
        self._taken: Final[dict[str, str]] = {}
        #: By the first characters of the tag: the placeholders, and the offset of the core in each.
        self._by_tag: Final[dict[str, list[tuple[str, int]]]] = {}
        self._texts: Final[set[str]] = set()
        #: Where the values are kept as well, if anywhere.
        self.vault: Vault | None = None

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, text: object) -> bool:
        return text in self._texts

    def of(self, value: str) -> str:
        """Return the placeholder of a value."""
        text = self._of.get(value)
        if text is None:
            if self._key is None:
                self._key = self._make_key()
            text = _shaped(value, self._tag(value))
            if self._taken.get(text, value) != value:  # in this process it is the placeholder of another value
                text = _shaped(value, self._tag(f"{value}\0"))
            if len(self._of) < 65536:
                self._of[value], self._value[text] = text, value
            self.keep(text)
        vault = self.vault  # a forked process has another vault than its parent
        if vault is not None and vault.values.get(text) != value:
            vault.keep(text, value)
        return text

    def _tag(self, value: str) -> str:
        from hmac import digest as hmac_digest

        assert self._key is not None
        digest = hmac_digest(self._key, value.encode("utf-8", "surrogatepass"), "sha256")
        return b32encode(digest).decode().rstrip("=")

    def keep(self, text: str) -> None:
        """Note that ``text`` is a placeholder, which is not redacted."""
        core = _CORE.search(text)
        if core is None or text in self._texts:
            return
        self._texts.add(text)
        self._by_tag[core[1]] = [*self._by_tag.get(core[1], ()), (text, core.start())]

    def stand_for(self, value: str, placeholder: str) -> str:
        """Make ``placeholder`` stand for ``value`` (or for the value whose placeholder ``value`` is); return that
        value."""
        value = self._value.get(value, value)
        for other in [one for one, text in self._of.items() if text == placeholder]:
            del self._of[other]
        self._of[value], self._taken[placeholder] = placeholder, value
        if self.vault is not None and placeholder not in self.vault.values:
            self.vault.keep(placeholder, value)
        return value

    def bring(self, values: Mapping[str, str]) -> None:
        """Note that these placeholders of a trace stand for these values."""
        for text, value in values.items():
            self._of[value], self._value[text] = text, value
            self._taken[text] = value
            self.keep(text)

    def within(self, text: str) -> list[tuple[int, str]]:
        """Return the placeholders in a text, with their offsets."""
        if not self._texts or "REDACTED" not in text:
            return []
        found = []
        for core in _CORE.finditer(text):
            for placeholder, before in self._by_tag.get(core[1], ()):
                start = core.start() - before
                if start >= 0 and text.startswith(placeholder, start):
                    found.append((start, placeholder))
                    break
        return found


def _shaped(value: str, tag: str) -> str:
    """Return a placeholder in the format of the value, if that is known, and as long as the value if that is not short.

    What is sent in pieces of a length that is sent before them can be read with the placeholder, too.
    """
    size, row = len(value.encode("utf-8", "surrogatepass")), form_of(value)
    if row is not None:
        head, least = f"{row.prefix}REDACTED", max(row.least - 8, _TAG // 2)
    elif value.startswith("eyJ") and value.count(".") >= 2:
        head, least = f"{_TOKEN}REDACTED", 35
    else:
        odd = _odd(value)  # which may not be the last character: many may end a token
        head, tag = f"REDACTED_{tag[:8]}{odd}", tag[8:] + tag[:8]
        least = 0 if len(head) + len(odd) <= size else _TAG // 2
    room = max(size - len(head), least)
    return head + (tag * (room // len(tag) + 1))[:room]


#: The characters of a request's credentials (RFC 7235, ``token68``).
_PLAIN: Final = expression(r"[A-Za-z0-9._~+/-]*=*")
#: Without line breaks: keys may be written over several lines, which code that checks for them accepts.
_CONTROL: Final = expression(r"[\0-\x09\x0b\x0c\x0e-\x1f\x7f]")


def _odd(value: str) -> str:
    """Return a character of the kind that makes a value an invalid token; empty if it may be valid.

    It reveals no more about the value than that: a control character is itself, everything else becomes the character
    that may only end a token.
    """
    if _PLAIN.fullmatch(value):
        return ""
    control = _CONTROL.search(value)
    return "=" if control is None else control[0]


def marks_of(entry: Mapping[str, Any]) -> Iterator[Mark]:
    """Yield the marks of an entry: those of a step's output, and those of everything else."""
    for about in (meta_of(entry), info_of(entry)):
        found = about.get("redacted")
        for mark in found if isinstance(found, list) else ():
            if isinstance(mark, list) and len(mark) == 3 and type(mark[0]) is type(mark[2]) is str:
                yield mark


def below(marks: Iterable[Mark], pointer: str) -> list[Mark]:
    """Return the marks of a value as marks of an entry that has the value at ``pointer``."""
    return [[f"#{pointer}{at[1:]}" if at.startswith("#") else pointer + at, start, text] for at, start, text in marks]


# -- originals ---------------------------------------------------------------------------------------------------------
#
# Restores redacted values that the trace's vault has, exactly where the marks of an entry say.


class Originals:
    """The values behind the placeholders of one trace, as far as its vault has them; loaded on first use."""

    def __init__(self, trace: str) -> None:
        self._trace: Final = trace
        self._values: Mapping[str, str] | None = None

    @property
    def values(self) -> Mapping[str, str]:
        """The values by placeholder; empty if no key is configured or there is no vault. Raises ``TraceError`` if the
        key is wrong, or the vault damaged."""
        if self._values is None:
            vault = Vault.of_process(self._trace)
            self._values = {} if vault is None else vault.values
        return self._values

    @property
    def locked(self) -> bool:
        """Whether there is a vault, but no key is configured."""
        return not self.values and has_vault(self._trace)

    def lack(self, entry: Mapping[str, Any], *keys: str) -> bool:
        """Return whether a placeholder with an unknown value is at or below these keys of an entry (by default
        anywhere)."""
        below = tuple("/" + key for key in keys)
        return any(
            text not in self.values and (not keys or pointer.lstrip("#").startswith(below))
            for pointer, _, text in marks_of(entry)
        )

    def first(self, trace: Trace) -> dict[str, Any]:
        """Return the first entry of the trace with its original input and arguments."""
        return self.of(trace.entry(1), trace.expand, "input", "meta")

    def lacking(self, entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield the entries, without the marks of those whose values are all known. A vault that can't be opened has
        none."""
        return map(self.lacks, entries)

    def lacks(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the entry, without its marks if all their values are known."""
        meta = entry.get("meta")
        if type(meta) is dict and "redacted" in meta and self._has_all(entry):
            return {**entry, "meta": {key: item for key, item in meta.items() if key != "redacted"}}
        return entry

    def _has_all(self, entry: Mapping[str, Any]) -> bool:
        try:
            return any(marks_of(entry)) and not self.lack(entry, "output", "error", "arguments")
        except TraceError:
            return False

    def of(self, entry: dict[str, Any], expand: Callable[[Any], Any], *keys: str) -> dict[str, Any]:
        """Return an entry with the placeholders below ``keys``, which ``expand`` resolves, replaced by their values;
        the entry itself if there are none."""
        found: dict[str, list[tuple[str, int, str]]] = {}
        for pointer, start, text in marks_of(entry):
            named = pointer.startswith("#")
            key, _, rest = pointer.lstrip("#/").partition("/")
            if key in keys and key in entry and text in self.values and type(start) is int:
                found.setdefault(key, []).append((("#" if named else "") + ("/" + rest if rest else ""), start, text))
        if not found:
            return entry
        streamed = str(entry.get("type")).endswith(".chunk")
        whole = {key: _put_back(expand(entry[key]), marks, self.values, streamed) for key, marks in found.items()}
        return {**entry, **whole}


class _Spot:
    """Positions of placeholders in a tree, nested like it: in the text itself, and in the field's name."""

    __slots__ = ("below", "names", "texts")

    def __init__(self) -> None:
        self.below: Final[dict[str, _Spot]] = {}
        self.texts: Final[set[tuple[int, str]]] = set()
        self.names: Final[set[tuple[int, str]]] = set()


def _put_back(tree: Any, marks: Iterable[tuple[str, int, str]], values: Mapping[str, str], streamed: bool) -> Any:
    root = _Spot()
    for pointer, start, text in marks:
        spot = root
        for name in pointer.lstrip("#").split("/")[1:]:
            spot = spot.below.setdefault(name.replace("~1", "/").replace("~0", "~"), _Spot())
        (spot.names if pointer.startswith("#") else spot.texts).add((start, text))
    return _with_values(tree, root, values, streamed)


def _with_values(tree: Any, spot: _Spot, values: Mapping[str, str], streamed: bool) -> Any:
    if type(tree) is str:
        return _filled(tree, spot.texts, values)
    if type(tree) is list:
        items = [spot.below.get(str(number)) for number in range(len(tree))]
        return [
            item if at is None else _with_values(item, at, values, streamed)
            for item, at in zip(tree, items, strict=True)
        ]
    if type(tree) is not dict:
        return tree
    if spot.texts:
        return _data_filled(tree, spot.texts, values, streamed)
    return {
        name if (at := spot.below.get(name)) is None else _filled(name, at.names, values): item
        if at is None
        else _with_values(item, at, values, streamed)
        for name, item in tree.items()
    }


def _filled(text: str, spots: Iterable[tuple[int, str]], values: Mapping[str, str]) -> str:
    for start, placeholder in sorted(spots, reverse=True):
        if text.startswith(placeholder, start):
            text = text[:start] + values[placeholder] + text[start + len(placeholder) :]
    return text


def _data_filled(tree: Any, spots: set[tuple[int, str]], values: Mapping[str, str], streamed: bool) -> Any:
    """Restore base64 data: pieces of a stream were read byte by byte, everything else as UTF-8 if possible."""
    raw = a2b_base64(tree["v"])
    for encoding in ("latin-1", "utf-8") if streamed else ("utf-8", "latin-1"):
        try:
            text = raw.decode(encoding, "surrogatepass")
            if all(text.startswith(placeholder, start) for start, placeholder in spots):
                data = _filled(text, spots, values).encode(encoding, "surrogatepass")
                return {**tree, "v": b2a_base64(data, newline=False).decode()}
        except UnicodeError:
            continue
    return tree


# -- redaction ---------------------------------------------------------------------------------------------------------
#
# Removes secrets from the stored copy: by format, by the name of the field, by their exact text if known, and by the
# user's patterns. What the program gets is never changed. Three promises: replacing is deterministic, repeating it
# changes nothing, and ``Redactor.suspicious`` never misses what ``Redactor.redact`` would find.

Tree = Any

_DATA_TAGS: Final = frozenset(("bytes", "bytearray", "memoryview", "str", "npbytes"))
#: Mappings with keys that are not strings, and others, which are stored as pairs.
_PAIRS: Final = frozenset(("dict", "OrderedDict", "defaultdict"))
#: Tags in which a text under a secret name may be wrapped.
_WRAPPED: Final = frozenset(("tuple", "sub", "npstr", "enum", "set", "frozenset"))
_ENCODED: Final = expression(rb'\$t":"(?:bytes|bytearray|memoryview|str|npbytes|secret)"')
_FLAG: Final = expression(r"(?P<name>--?[A-Za-z][A-Za-z0-9_-]*|[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.+)", re.DOTALL)


def _always(data: bytes) -> bool:
    return True


def patterns_of(redact: Any) -> tuple[re.Pattern[str], ...]:
    """Return the user's regular expressions, each a string or compiled, as compiled ones; a single one counts as one.

    Raises ``ValueError`` for a text that is no regular expression, and ``TypeError`` for anything else.
    """
    given = (redact,) if isinstance(redact, (str, re.Pattern)) else redact
    if not isinstance(given, Iterable) or isinstance(given, (bytes, Mapping)):
        raise TypeError(f"redact must be a list of regular expressions, not {redact!r}")
    return tuple([_pattern(one) for one in given])


def _pattern(one: Any) -> re.Pattern[str]:
    if isinstance(one, bytes) or (isinstance(one, re.Pattern) and isinstance(one.pattern, bytes)):
        raise TypeError(f"redact: {one!r} is a pattern of bytes; give it as str, which is also searched for in bytes")
    if not isinstance(one, (str, re.Pattern)):
        raise TypeError(f"redact must be a list of regular expressions; {one!r} in it is not one")
    try:
        return re.compile(one)
    except re.error as error:
        raise ValueError(f"redact: {one!r} is not a regular expression: {error}") from None


class Redactor:
    """Finds secrets and replaces them by placeholders.

    ``patterns`` are the user's, in addition to the built-in ones: regular expressions whose whole match is the secret.
    A single one may be passed as it is; an invalid one raises ``ValueError``. ``environment`` has variables whose
    secret values are replaced wherever they appear.
    """

    def __init__(
        self,
        patterns: str | re.Pattern[str] | Iterable[str | re.Pattern[str]] = (),
        environment: Mapping[str, str] | None = None,
        placeholders: Placeholders | None = None,
    ) -> None:
        self._user: Final = patterns_of(patterns)
        self._lock: Final = _reality.OwnLock()
        self._seen: Final[set[str]] = set()
        self._others: Final[dict[tuple[re.Pattern[str], ...], Redactor]] = {}
        #: The redactor that learns for this one.
        self._run = self
        self.placeholders: Final = Placeholders() if placeholders is None else placeholders
        #: The secrets whose exact text is known.
        self.known = _known_in(tuple(environment.items())) if environment else _NO_SECRET_KNOWN
        #: Equal states redact equally; replaced whenever something is learned. ``None``: only the built-in kinds.
        self.state: object = object() if self._user or self.known else None
        #: ``suspicious`` for encoded JSON without base64 data. Read it anew each time: learning replaces it.
        self.look: Callable[[bytes], bool] = self._looker(self.known)

    @classmethod
    @_reality.off_loop()
    def of_process(
        cls,
        patterns: str | re.Pattern[str] | Iterable[str | re.Pattern[str]] = (),
        store: str | None = None,
        *,
        trace: str | None = None,
        create: bool = False,
    ) -> Redactor:
        """Create the redactor of a run, which knows the secrets in the current environment.

        ``store`` is the directory whose secret determines the placeholders; by default the one containing the file
        ``trace``. With ``create`` a missing secret is created.
        """
        if trace is not None:
            place = os.path.dirname(os.path.abspath(trace))
            store = os.path.dirname(place) if os.path.basename(place) == "runs" else place
        made = Placeholders() if store is None else Placeholders(store_key(store, create=create))
        return cls(patterns, environment_variables(), made)

    def also(self, patterns: tuple[re.Pattern[str], ...] | None) -> Redactor:
        """Return this redactor with further patterns of the user."""
        if not patterns:
            return self
        found = self._others.get(patterns)
        if found is None:
            found = self._others[patterns] = Redactor((*self._user, *patterns), None, self.placeholders)
            found._run = self
        return found

    def keep(self, placeholders: Iterable[str]) -> None:
        """Note that these texts are placeholders of the trace, which are not redacted."""
        for text in placeholders:
            self.placeholders.keep(text)
        if self.placeholders:
            self.look = self._looker(self.known)

    def stand_for(self, value: str, placeholder: str) -> None:
        """Note that a placeholder of the trace stands for ``value`` in this process."""
        with self._lock:
            value = self.placeholders.stand_for(value, placeholder)
            known = self.known.plus([(value, "environment")]) if _worth(value) else self.known
            self._know(known, anew=True)

    def _know(self, known: KnownSecrets, *, anew: bool = False) -> None:
        if known is not self.known or anew:
            look, state = self._looker(known), object()
            # Together: no signal handler is called between these.
            self.known, self.look, self.state = known, look, state

    def _looker(self, known: KnownSecrets) -> Callable[[bytes], bool]:
        if self._user:
            return _always
        first = _hot_or_kept if self.placeholders else look(True)
        return known.looker(first) if known else first

    def learn(self, credential: str) -> None:
        """Redact ``credential``, the value of a header just sent, or a password just typed, from now on. Thread-safe."""
        if credential in self._seen:
            return
        with self._lock:
            self._know(self.known.plus(of_header(credential)))
            if len(self._seen) < 1024:  # last: if this is interrupted, the credential is learned the next time
                self._seen.add(credential)

    @property
    def version(self) -> tuple[object, ...]:
        """Equal as long as the same value is redacted in the same way, with the same marks."""
        return self.state, self.look, len(self.placeholders), self.placeholders.vault

    @property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """The user's own patterns."""
        return self._user

    def suspicious(self, data: bytes) -> bool:
        """Return whether the encoded JSON may contain a secret. Quick to say no; a yes may be wrong, a no is not.

        With user patterns it is always yes: their matches can't be seen in the encoded form.
        """
        if self.look(data):
            return True
        return 36 in data and _ENCODED.search(data) is not None

    def redact_text(self, text: str) -> tuple[str, list[Mark]]:
        """Return ``text`` without its secrets, and the positions of placeholders."""
        while spans := self.spans(text):
            after = self._replaced(text, spans)
            if after == text:
                break
            text = after
        if "REDACTED" not in text:  # a part of every placeholder
            return text, []
        return text, [["", start, placeholder] for start, placeholder in self.placeholders.within(text)]

    def spans(self, text: str, *, open: bool = False) -> list[Span]:
        """Return the secrets as ``(start, end, kind)``, sorted and without overlaps. ``open``: the text may continue."""
        found = self._own_spans(text)
        # In ASCII texts the expressions for bytes are used, which are compiled anyway.
        if len(text) >= SHORTEST and (open or (look(True)(text.encode()) if text.isascii() else look(False)(text))):
            found += find(text, open=open)
        return _apart(found) if found else found

    def _own_spans(self, text: str) -> list[Span]:
        """Return the secrets that only this redactor knows: by their exact text, and by the user's patterns."""
        found: list[Span] = []
        if self._run.known.texts:
            found += self._run.known.spans(text)
        for pattern in self._user:
            found += [(*match.span(), "user") for match in pattern.finditer(text) if match.end() > match.start()]
        return found

    def _replaced(self, text: str, spans: list[Span]) -> str:
        covered = [(start, start + len(placeholder)) for start, placeholder in self.placeholders.within(text)]
        parts, last = [], 0
        for start, end, _ in spans:
            if covered and _within(start, end, covered):
                continue
            for left, right in covered:  # a placeholder is replaced as a whole or not at all
                if left < start < right:
                    start = right
                if left < end < right:
                    end = left
            if start >= end or start < last:
                continue
            parts += [text[last:start], self._placeholder(text[start:end])]
            last = end
        parts.append(text[last:])
        return "".join(parts)

    def _placeholder(self, value: str) -> str:
        known = bool(self.placeholders)
        text = self.placeholders.of(value)
        if not known:  # search for it from now on
            self._run.look = self._run._looker(self._run.known)
        return text

    def redact(self, tree: Tree) -> tuple[Tree, list[Mark]]:
        """Return ``tree`` (from ``to_json``) without secrets, and the positions of placeholders; the same tree if there
        are none.

        Looks into every text, including keys and base64 data.
        """
        if type(tree) is str:
            return self.redact_text(tree)
        if type(tree) is dict:
            return self._mapping(tree)
        if type(tree) is list:
            return self._items(tree)
        return tree, []

    def _items(self, tree: list[Tree]) -> tuple[Tree, list[Mark]]:
        if len(tree) == 2 and type(tree[0]) is str and type(tree[1]) in _BY_NAME and names_secret(tree[0]):
            return self._pair(tree)
        if any(type(item) is str and item[:1] == "-" for item in tree):
            return self._words(tree)
        return _listed(tree, [self.redact(item) for item in tree])

    def _words(self, tree: list[Tree]) -> tuple[Tree, list[Mark]]:
        """Redact what may be a command line: the word after an option that names a secret is one if it can be."""
        done: list[tuple[Tree, list[Mark]]] = []
        strength: Strength = ""
        before: Tree = ""
        signs_in = any(type(item) is str and item.rpartition("/")[2] == "curl" for item in tree)
        for item in tree:
            if signs_in and type(item) is str and type(before) is str and before in _USER_OPTIONS and ":" in item:
                done.append(self._user_and_password(item))
            else:
                done.append(self._secret(item, strength) if type(item) is str and strength else self.redact(item))
            strength = names_secret(item) if type(item) is str and item[:1] == "-" and "=" not in item else ""
            before = item
        return _listed(tree, done)

    def _user_and_password(self, text: str) -> tuple[str, list[Mark]]:
        """Redact the password in ``user:password``."""
        user, _, password = text.partition(":")
        found, marks = self._secret(password, "secret")
        return (
            (f"{user}:{found}", [[at, start + len(user) + 1, one] for at, start, one in marks]) if marks else (text, [])
        )

    def _secret(self, text: str, strength: Strength) -> tuple[str, list[Mark]]:
        """Redact a text under the name of a secret."""
        if text in self.placeholders:
            return text, [["", 0, text]]
        if holds_secret(strength, text):
            found = self.redact_text(text)
            if any(mark[2] == found[0] for mark in found[1]):
                return found
            placeholder = self._placeholder(text)
            return placeholder, [["", 0, placeholder]]
        return self.redact_text(text)

    def _pair(self, tree: list[Tree]) -> tuple[Tree, list[Mark]]:
        """Redact a name and its value; two words may be just that."""
        strength = names_secret(tree[0])
        if type(tree[1]) is str and strength == "secret" and not key_like(tree[1]) and "-" not in tree[0]:
            return _listed(tree, [self.redact_text(tree[0]), self.redact_text(tree[1])])
        return _listed(tree, [self.redact_text(tree[0]), self._field(tree[0], tree[1])])

    def _mapping(self, tree: dict[str, Tree]) -> tuple[Tree, list[Mark]]:
        tag = tree.get("$t")
        if tag in _DATA_TAGS and type(tree.get("v")) is str:
            return self._data(tree)
        if tag in _PAIRS and type(tree.get("v")) is list:
            return self._pairs(tree)
        if tag == "secret" and type(tree.get("v")) is str and tree["v"]:
            placeholder = self.placeholder(tree["v"])
            return {**tree, "v": placeholder}, [["/v", 0, placeholder]]
        changed: dict[str, Tree] = {}
        marks: list[Mark] = []
        named = _named_here(tree) if tag is None else ""
        for key, item in tree.items():
            if key == "$t" or (key == "c" and tag is not None):
                changed[key] = item
                continue
            name, ours = self.redact_text(key)
            name = _unused(name, changed) if ours else name
            changed[name], inner = self._field(named if named and key in _VALUES else key, item)
            if ours or inner:
                at = "/" + name.replace("~", "~0").replace("/", "~1")
                marks += [["#" + at, start, text] for _, start, text in ours]
                marks += below(inner, at)
        return (changed, marks) if marks else (tree, [])

    def _pairs(self, tree: dict[str, Tree]) -> tuple[Tree, list[Mark]]:
        done = [
            _listed(item, [self.redact_text(item[0]), self._field(item[0], item[1])])
            if type(item) is list and len(item) == 2 and type(item[0]) is str
            else self.redact(item)
            for item in tree["v"]
        ]
        items, marks = _listed(tree["v"], done)
        return ({**tree, "v": items}, below(marks, "/v")) if marks else (tree, [])

    def _field(self, name: str, item: Tree) -> tuple[Tree, list[Mark]]:
        """Redact what is under a name: as a secret if the name says so."""
        if name in OPAQUE_FIELDS and type(item) is str:
            return self._opaque(item)
        strength = names_secret(name) if type(item) in _BY_NAME else ""
        if strength in ("", "key"):
            return self.redact(item)
        if type(item) is str:
            return self._secret(item, strength)
        if type(item) is dict:
            return self._wrapped(name, item)
        return _listed(item, [self._field(name, one) if type(one) is str else self.redact(one) for one in item])

    def _opaque(self, text: str) -> tuple[str, list[Mark]]:
        """Redact a provider's opaque data, which has to be sent back unchanged: only known secrets are searched for."""
        if not _OPAQUE.fullmatch(text):
            return self.redact_text(text)
        spans = _apart(self._own_spans(text))
        after = self._replaced(text, spans) if spans else text
        return after, [["", start, placeholder] for start, placeholder in self.placeholders.within(after)]

    def _wrapped(self, name: str, item: dict[str, Tree]) -> tuple[Tree, list[Mark]]:
        tag, value = item.get("$t"), item.get("v")
        if tag in _DATA_TAGS and type(value) is str:
            return self._hidden(name, item)
        if tag in _WRAPPED and type(value) in (str, list):
            inner, marks = self._field(name, value)
            return ({**item, "v": inner}, below(marks, "/v")) if marks else (item, [])
        if tag is None and names_secret(name) == "cookie" and "type" not in item:
            done = {
                key: self._secret(one, "credential") if type(one) is str else self.redact(one)
                for key, one in item.items()
            }
            marks = [mark for key, (_, inner) in done.items() for mark in below(inner, "/" + key)]
            return ({key: one for key, (one, _) in done.items()}, marks) if marks else (item, [])
        return self.redact(item)

    def _hidden(self, name: str, item: dict[str, Tree]) -> tuple[Tree, list[Mark]]:
        """Redact bytes, or a text with surrogates, under a secret name."""
        text = _text_of(item)
        if text is None:
            return item, []
        after, marks = self._secret(text, names_secret(name))
        return (_data_of(item, after), marks) if marks else (item, [])

    def _data(self, tree: dict[str, Tree]) -> tuple[Tree, list[Mark]]:
        """Redact base64 data; the tag, and so the type, is kept."""
        text = _text_of(tree)
        if text is None:
            return tree, []
        after, marks = self.redact_text(text)
        return (_data_of(tree, after), marks) if marks else (tree, [])

    def redact_argv(self, argv: Iterable[str]) -> list[str]:
        """Redact command-line words: the values of ``--api-key X``, ``--password=X``, ``TOKEN=X``, and everything with
        a key format."""
        words: list[str] = []
        option, program, before = "", "", ""
        for word in argv:
            of_user, before = program == "curl" and before in _USER_OPTIONS and ":" in word, word
            if of_user:
                words.append(self._user_and_password(word)[0])
                option = ""
                continue
            if option and not word.startswith("-") and self._is_argument(option, word):
                words.append(self.placeholder(word))
                option = ""
                continue
            base = word.rpartition("/")[2]
            program = base if base in _PASSWORD_OPTIONS or base == "curl" else program
            option = ""
            if word.startswith("-") and "=" not in word:
                option = "password" if word == _PASSWORD_OPTIONS.get(program) else word
            words.append(self._word(word, program))
        return words

    def placeholder(self, value: str) -> str:
        """Return the placeholder of ``value``; a placeholder is returned unchanged."""
        return value if value in self.placeholders else self._placeholder(value)

    @staticmethod
    def _is_argument(option: str, word: str) -> bool:
        strength = names_secret(option)
        return key_like(word) if strength == "key" else bool(strength)

    def _word(self, word: str, program: str = "") -> str:
        flag = _FLAG.fullmatch(word) if "=" in word else None
        if flag and self._is_argument(flag["name"], flag["value"]):
            return f"{flag['name']}={self.placeholder(flag['value'])}"
        short = _PASSWORD_OPTIONS.get(program)
        if short is not None and len(word) > 2 and word.startswith(short) and not word.startswith("--"):
            return short + self.placeholder(word[2:])
        return self.redact_text(word)[0]

    def redact_environment(self, variables: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Redact environment variables: values of secret names as a whole, other values by their content."""
        return {
            name: self.placeholder(value)
            if value and _of_variable(name, value) and not _no_secret(value)
            else self.redact_text(value)[0]
            for name, value in variables
        }

    def without_secrets(self, value: Any) -> Any:
        """Return a value as the log keeps it: the very same if it has no secrets, else a copy with placeholders."""
        tree = to_json(value)
        if not self.suspicious(dumps(tree)):
            return value
        kept, redacted = self.redact(tree)
        return decoding.from_json(kept) if redacted else value

    def redacted(self, value: Any) -> bool:
        """Return whether a value contains a placeholder in place of a secret."""
        return bool(self.redact(to_json(value))[1])

    def stream(self) -> StreamRedactor:
        """Return a redactor for one stream of chunks."""
        return StreamRedactor(self)


#: Programs with a short option followed by a password, immediately or as the next word.
_PASSWORD_OPTIONS: Final = {
    "mysql": "-p", "mysqldump": "-p", "mysqladmin": "-p", "mariadb": "-p", "sshpass": "-p", "mongosh": "-p",
    "mongo": "-p", "redis-cli": "-a",
    "ldapsearch": "-w",
}  # fmt: skip
#: Options of curl followed by user and password.
_USER_OPTIONS: Final = ("-u", "--user", "-U", "--proxy-user")
#: Keys of dictionaries that hold a name and a value, such as headers, variables and form fields.
_NAME_FIELDS: Final = ("name", "key", "header", "field", "Name", "Key")
_VALUES: Final = frozenset(("value", "Value", "content", "text", "default", "body"))
_OPAQUE: Final = expression(r"[A-Za-z0-9+/=_-]*")


def _named_here(tree: dict[str, Tree]) -> str:
    """Return the name in a dictionary of name and value, if it names a secret."""
    for field in _NAME_FIELDS:
        name = tree.get(field)
        if type(name) is str and names_secret(name) not in ("", "key") and not _VALUES.isdisjoint(tree):
            return name
    return ""


#: The types of JSON values inside which a name can indicate a secret.
_BY_NAME: Final = frozenset((str, dict, list))


def _listed(tree: list[Tree], done: list[tuple[Tree, list[Mark]]]) -> tuple[Tree, list[Mark]]:
    marks = [mark for number, (_, inner) in enumerate(done) if inner for mark in below(inner, f"/{number}")]
    return ([item for item, _ in done], marks) if marks else (tree, [])


def _hot_or_kept(data: bytes) -> bool:
    return look(True)(data) or b"REDACTED" in data


def _text_of(tree: dict[str, Tree]) -> str | None:
    """Return base64 data as text: as UTF-8 if valid, else one character per byte."""
    try:
        raw = a2b_base64(tree["v"])
    except ValueError:
        return None
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _data_of(tree: dict[str, Tree], text: str) -> dict[str, Tree]:
    """Return data of the same type for ``text``, as read by ``_text_of``."""
    raw = a2b_base64(tree["v"])
    try:
        raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        data = text.encode("latin-1")
    else:
        data = text.encode("utf-8", "surrogatepass")
    return {**tree, "v": b2a_base64(data, newline=False).decode()}


def _unused(name: str, taken: dict[str, Tree]) -> str:
    """Return an unused name, so that two different keys stay different."""
    number, free = 2, name
    while free in taken:
        free, number = f"{name}#{number}", number + 1
    return free


def _within(start: int, end: int, covered: list[tuple[int, int]]) -> bool:
    """Return whether every character from ``start`` to ``end`` belongs to a placeholder already."""
    for left, right in covered:
        if left <= start < right:
            start = right
    return start >= end


def _apart(spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Merge overlapping spans, under the kind of the one that begins first (the longest of those)."""
    merged: list[tuple[int, int, str]] = []
    for start, end, kind in sorted(spans, key=lambda span: (span[0], -span[1], span[2])):
        if merged and start < merged[-1][1]:
            first, last, name = merged[-1]
            merged[-1] = (first, max(last, end), name)
        else:
            merged.append((start, end, kind))
    return merged


class StreamRedactor:
    """Redacts a stream chunk by chunk, although a secret may begin in one chunk and end in another.

    No complete copy of a split secret is ever stored: what looks like the beginning of one (its whole prefix, then
    characters of a key up to the end of the chunk) is replaced at once, and so is its continuation in later chunks.
    """

    #: How much text before a chunk is kept for patterns that began there.
    TAIL: Final = 64
    USER_TAIL: Final = 512
    #: A longer secret is tracked only by its first and last characters.
    OPEN: Final = 8192

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        #: The redactor that learns known secrets.
        self.run = redactor._run
        #: The end of the text so far, and how much of it is kept.
        self.tail = ""
        self.user = bool(redactor.patterns)
        self.keep = self.USER_TAIL if self.user else self.TAIL
        self.look = passing()

    def feed(self, chunk: str | bytes) -> tuple[Any, list[Mark]]:
        """Return the chunk as it is to be stored (of the same type), and the positions of placeholders."""
        if not isinstance(chunk, str):
            text, marks = self.feed(bytes(chunk).decode("latin-1"))
            return (text.encode("latin-1"), marks) if marks else (chunk, [])
        known = self.run.known
        if not self.user:
            tail = self.look(self.tail, chunk, self.keep, known.starts)
            if tail is not None:  # the common case
                self.tail = tail
                return chunk, []
        window = self.tail + chunk
        opened = None
        if not (self.user or "://" in window or look(False)(window)):
            opened = known.beginning(window)
            if opened is None and not known.within(window):
                self.tail = window[-self.keep :]
                return chunk, []
        return self._cut_out(chunk, window, opened or known.beginning(window))

    def _cut_out(self, chunk: str, window: str, opened: tuple[int, int, int, str] | None) -> tuple[str, list[Mark]]:
        old = len(self.tail)
        spans = self._redactor.spans(window, open=True)
        if opened is not None:
            spans = _apart([*spans, opened[1:]])
        self._remember(window, spans, opened[0] if opened is not None else len(window))
        return self._cut(chunk, [(start - old, end - old) for start, end, _ in spans if end > old])

    def _cut(self, chunk: str, spans: list[tuple[int, int]]) -> tuple[str, list[Mark]]:
        parts, last, size = [], 0, 0
        marks: list[Mark] = []
        for start, end in spans:
            before, value = chunk[last : max(start, 0)], chunk[max(start, 0) : end]
            placeholder = self._redactor.placeholder(value)
            marks.append(["", size + len(before), placeholder])
            parts += [before, placeholder]
            size += len(before) + len(placeholder)
            last = end
        parts.append(chunk[last:])
        return "".join(parts), marks

    def _remember(self, window: str, spans: list[tuple[int, int, str]], opened: int) -> None:
        """Keep what identifies a secret that continues in the next chunk: all of it, with what precedes it."""
        start = min(opened, len(window) - self.keep)
        if spans and spans[-1][1] == len(window):
            start = min(start, spans[-1][0] - self.TAIL)
        tail = window[max(0, start - 8) :]
        self.tail = tail if len(tail) <= self.OPEN else tail[: self.OPEN // 2] + tail[-self.OPEN // 2 :]
