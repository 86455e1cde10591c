"""The tables of what a secret looks like: names of fields, and formats of keys and tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple

__all__ = [
    "FIELDS",
    "HEADERS",
    "KINDS",
    "NAME",
    "NOT_SECRET",
    "SECRET_NAMES",
    "Kind",
    "holds_secret",
    "hot",
    "hot_bytes",
    "is_field",
    "key_like",
    "plain",
    "warm",
]

# -- secret fields -----------------------------------------------------------------------------------------------------
#
# Secrets that only their name gives away: fields, parameters and headers, and the same in a text (``password=…``).

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
#: A cache of :func:`is_field`, of nothing but the name.
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


# -- secret kinds ------------------------------------------------------------------------------------------------------
#
# The formats of well-known secrets, and the quick look that says that a text holds none.
#
# A kind is a prefix that nothing else begins with, and the characters that may follow. ``pattern`` is a whole secret, ``partial``
# what may be the beginning of one at the end of a text.


#: Compiled when first needed: all of them together take longer than many a program, and most texts need none.
_compiled: Final = cache(re.compile)


class Kind(NamedTuple):
    """``literals``: one of them stands in every secret of the kind. ``group``: the part of a match that is the secret."""

    name: str
    literals: tuple[str, ...]
    pattern: str
    partial: str
    group: int

    def all_in(self, text: str) -> Iterator[re.Match[str]]:
        """Each whole secret in a text."""
        return _compiled(self.pattern).finditer(text)

    def begins_in(self, text: str) -> re.Match[str] | None:
        """What may be the beginning of one at the end of a text."""
        return _compiled(self.partial).search(text)


# Where a key may begin: not within a word, but after an escape of a URL or of JSON inside a text.
_EDGE: Final = r"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2})|(?<=\\[nrtbf])|(?<=\\u[0-9A-Fa-f]{4}))"
_WORD: Final = "[A-Za-z0-9_-]"
_ALNUM: Final = "[A-Za-z0-9]"


def _key(
    name: str, prefix: str, least: int, body: str = _WORD, literals: tuple[str, ...] = (), inside: str | None = None
) -> Kind:
    """A key: ``prefix`` (a regular expression of literals), then at least ``least`` characters of ``body``.

    ``inside`` is how it begins where it follows a letter or digit at once; without it, it does not begin there.
    """
    within = "" if inside is None else f"|(?:{inside}){body}*"
    return Kind(
        name,
        literals or (prefix.replace("\\", ""),),
        f"{_EDGE}(?:{prefix}){body}{{{least},}}{within}",
        f"(?:{_EDGE}(?:{prefix}){body}*{within})\\Z",
        0,
    )


def _inside(prefix: str, least: int) -> str:
    """A prefix and at once ``least`` letters and digits, one digit among them: what no compound word is."""
    return f"(?:{prefix})(?=[A-Za-z]*[0-9]){_ALNUM}{{{least},}}"


_TOKEN: Final = r"[A-Za-z0-9._~+/=-]"
# A digit, a padding, a capital after a small letter: what "Basic understanding" has not.
_NO_WORD: Final = rf"(?={_TOKEN}*?(?:[0-9=]|[a-z][A-Z]))"
_AUTHORIZATION: Final = r"(?:Authorization|AUTHORIZATION)\\{0,7}[\"']? {0,4}[:=] {0,4}\\{0,7}[\"']?"
# In a text, between a name and what it names: quotes as deep as they are escaped.
_IS: Final = r"\\{0,7}[\"'\]]{0,2}[ \t]?(?:=>|:=|=(?!=)|:(?![:=]))[ \t]{0,3}"
_QUOTE: Final = rf"{NAME}{_IS}[bBrRuUfF]?(\\{{0,7}}[\"'])"
_TEXT: Final = r"((?:(?!\1)(?:\\.|[^\r\n\\])){1,4096}"
_QUOTED: Final = rf"{_QUOTE}(?!(?:None|null|\*+|\$\{{[^{{}}]*\}}|<[^<>]*>|\{{\{{?[^{{}}]*\}}?\}})\1){_TEXT})\1"
_QUOTE_OPEN: Final = rf"{_QUOTE}(?![$<{{*]){_TEXT}\\?)\Z"
# Without quotes a secret has a digit or a sign: "password: required" is a sentence, and "password=os.environ[…]" is code.
_BARE: Final = rf"{NAME}{_IS}(?![/$%]|https?:|\.{{1,2}}/)(?=[^\s\"'<>,;&()\[\]{{}}\\]*[0-9!@#^*~+])([^\s\"'<>,;&()\[\]{{}}\\]{{6,500}}+)"
_CONNECTION: Final = r";[ ]?(?i:password|pwd)=([^;\s\"'\\]{1,500})"
_CURL: Final = r"curl\b[^\n]{0,1000}?\s(?:-u|--user|-U|--proxy-user)[ =]?[\"']?[^\s:\"']{1,200}:([^\s\"'\\]{1,500}"
_NAMED: Final = ("assw", "ASSW", "pwd", "Pwd", "PWD", "ecret", "ECRET", "ken", "KEN", "ey", "EY", "Ken", "Key")

_AUTH_SCHEME: Final = "(?:[Bb]earer|[Bb]asic|[Tt]oken|[Aa]pi[Kk]ey)"

KINDS: Final[tuple[Kind, ...]] = (
    _key("anthropic", "sk-ant-", 8, inside=r"sk-ant-(?:[a-z]{2,8}[0-9]{2}-)"),
    _key("openai", "sk-(?!ant-)", 12, literals=("sk-",), inside=_inside("sk-(?:proj-|svcacct-|admin-|or-v1-)?", 20)),
    _key("aws", "(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)", 16, "[A-Z0-9]", ("AKIA", "ASIA", "ABIA", "ACCA", "AROA", "AIDA")),
    _key("google", "AIza", 30),
    _key(
        "github",
        "(?:gh[pousr]_|github_pat_)",
        20,
        "(?:[A-Za-z0-9]|(?<=[A-Za-z0-9]{8})_)",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        inside=_inside("gh[pousr]_|github_pat_", 20),
    ),
    _key(
        "gitlab",
        "(?:glpat-|glrt-|gldt-)",
        16,
        literals=("glpat-", "glrt-", "gldt-"),
        inside="(?:glpat-|glrt-|gldt-)[A-Za-z0-9_-]{16}",
    ),
    _key("slack", "(?:xox[abeoprs]-|xapp-)", 10, literals=("xox", "xapp-")),
    _key("stripe", "(?:[sr]k_(?:live|test)_|whsec_)", 10, _ALNUM, ("k_live_", "k_test_", "whsec_")),
    _key("huggingface", "hf_", 20, _ALNUM, inside=_inside("hf_", 30)),
    _key("npm", "npm_", 30, _ALNUM, inside=_inside("npm_", 30)),
    _key("groq", "gsk_", 20, _ALNUM, inside=_inside("gsk_", 20)),
    _key("xai", "xai-", 20),
    _key("perplexity", "pplx-", 20),
    _key("digitalocean", "do[opr]_v1_", 32, "[a-f0-9]", ("_v1_",)),
    _key("pypi", "pypi-", 40),
    _key("sendgrid", "SG[.]", 32, "[A-Za-z0-9_.-]", ("SG.",)),
    _key("replicate", "r8_", 30, _ALNUM),
    Kind(
        "jwt",
        ("eyJ",),
        _EDGE + r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)*",
        # JSON that a binary stream wraps as base64 begins like one, and may be cut anywhere.
        _EDGE + r"(?<!\"bytes\":\")(?<!\"bytes\": \")eyJ[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]*)*\Z",
        0,
    ),
    Kind(
        "bearer",
        ("Bearer ", "BEARER "),
        rf"(?<![A-Za-z])(?:Bearer|BEARER) +({_NO_WORD}{_TOKEN}{{12,}})",
        rf"(?<![A-Za-z])(?:Bearer|BEARER) +({_NO_WORD}{_TOKEN}+)\Z",
        1,
    ),
    Kind(
        "basic",
        ("Basic ",),
        rf"(?<![A-Za-z])Basic +({_NO_WORD}[A-Za-z0-9+/]{{10,}}={{0,2}})",
        rf"(?<![A-Za-z])Basic +({_NO_WORD}[A-Za-z0-9+/]+={{0,2}})\Z",
        1,
    ),
    Kind(
        "authorization",
        ("Authorization", "AUTHORIZATION"),
        rf"{_AUTHORIZATION}(?:{_AUTH_SCHEME} +|{_NO_WORD})({_TOKEN}{{12,}})",
        rf"{_AUTHORIZATION}(?:{_AUTH_SCHEME} +|{_NO_WORD})({_TOKEN}+)\Z",
        1,
    ),
    Kind(
        "private-key",
        ("-----BEGIN",),
        r"(?s)-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]{0,40}-----|\Z)",
        r"(?s)-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:(?!-----END [A-Z0-9 ]{0,40}-----).)*\Z",
        0,
    ),
    Kind("field", _NAMED, _QUOTED, _QUOTE_OPEN, 2),
    Kind("field", _NAMED, _BARE + r"(?![(\[])", _BARE + r"\Z", 1),
    Kind("field", _NAMED, _CONNECTION, _CONNECTION + r"\Z", 1),
    Kind("user-password", ("curl",), _CURL + ")", _CURL + r")\Z", 1),
    Kind(
        "url-password",
        ("://",),
        r"://[^\s/@:?#\"']{0,200}:([^\s/@\"']{1,500})@",
        # A port looks the same until the next chunk: up to five digits pass.
        r"://[^\s/@:?#\"']{0,200}:(?!\d{1,5}(?:[^A-Za-z0-9]|\Z))([^\s/@\"']{1,500})\Z",
        1,
    ),
)

#: Names of parameters, options and variables whose value is a secret, alone or as the last words of a longer name.
SECRET_NAMES: Final = frozenset(
    """
    authorization auth api_key apikey api_token access_key access_key_id secret_access_key access_token
    refresh_token id_token auth_token session_token security_token token secret secret_key client_secret
    private_key password passwd pwd passphrase credential credentials cookie signature sig key
    """.split()  # noqa: SIM905 - a list would be two screens long
)

#: Names that end like a secret and are none.
NOT_SECRET: Final = frozenset(
    ("page_token", "next_page_token", "next_token", "prev_token", "sync_token", "eos_token", "bos_token", "pad_token")
)

# A text without these holds no secret. Each expression begins with one literal character, which is looked for quickly: first
# by itself (20 ns in 400 bytes; ``b"-" in data`` takes ten times as long as ``45 in data``), then by the engine.
_AT_UNDERSCORE: Final = (
    r"_(?=[A-Za-z0-9]FOLLOW)(?:(?<=gh[pousr]_)|(?<=_pat_)|(?<=_live_)|(?<=_test_)|(?<=whsec_)|(?<=hf_)|(?<=npm_)|"
    r"(?<=gsk_)|(?<=_v1_)|(?<=r8_))"
)
_AT_DASH: Final = (
    r"-(?:(?=[A-Za-z0-9_-]FOLLOW)(?:(?<=sk-)|(?<=gl[rd]t-)|(?<=glpat-)|"
    r"(?<=xox[abeoprs]-)|(?<=xapp-)|(?<=xai-)|(?<=pplx-)|(?<=pypi-)|----BEGIN)|(?<=[ nt]-)[uU](?=[^a-z])|(?<=--)(?:user|proxy-user))"
)
_AT_CAPITAL_A: Final = "A(?:KIA|SIA|BIA|CCA|ROA|IDA|Iza|uthorization|UTHORIZATION)"
_AT_CAPITAL_B: Final = "B(?:earer |EARER |asic )"
_AT_EQUALS: Final = "=(?<=(?i:key|_id|ord|swd|pwd|ase|ial|als|kie|ure|sig|ret|ken|uth|ion)=)"
# Names of secrets, each by a letter that not every word has; the next letter decides quickly that it is another word.
_AFTER_K: Final = (
    r"(?:[eE](?:[yY](?:(?<=(?i:pi|te|ss|et).[eE].)|(?<=(?i:pi|te|ss|et)[_-].[eE].))|[nN](?<=(?i:to).[eE].))"
    r"|[iI][eE](?<=(?i:coo).[iI].)[sS]?)(?![A-Za-z0-9_])"
)
_AFTER_W: Final = "(?:[oO](?<=(?i:ssw).)|[dD](?:(?<=(?i:ssw).)|(?<=(?i:p).[dD])))"
_AT_SECRET: Final = "cret(?<=(?i:se)cret)"
_AT_CAPITAL_C: Final = "C[rR](?<=(?i:se)..)"
_AT_Z: Final = "z(?<=(?i:uthori)z)"


def _looker(text: bool, follow: str = "{8}") -> Callable[[Any], bool]:
    """The quick look at texts, or at bytes: one function, made thrice. ``follow``: how many characters of a key must follow."""

    def search(source: str) -> Callable[[Any], object]:
        return re.compile(source if text else source.encode()).search

    at_underscore, at_dash = (
        search(_AT_UNDERSCORE.replace("FOLLOW", follow)),
        search(_AT_DASH.replace("FOLLOW", follow)),
    )
    at_a, at_b, at_j, at_s, at_at, at_equals = map(
        search, (_AT_CAPITAL_A, _AT_CAPITAL_B, "J(?<=eyJ)", "SG[.]", "://", _AT_EQUALS)
    )
    at_k, at_capital_k, at_w, at_capital_w = map(
        search, ("k" + _AFTER_K, "K" + _AFTER_K, "w" + _AFTER_W, "W" + _AFTER_W)
    )
    at_secret, at_capital_c, at_z = map(search, (_AT_SECRET, _AT_CAPITAL_C, _AT_Z))
    k, capital_k, w, capital_w, capital_c, z = "kKwWCz" if text else b"kKwWCz"
    underscore, dash, a, b, j, s, at, equals, question, ampersand, semicolon = "_-ABJS@=?&;" if text else b"_-ABJS@=?&;"

    def hot(data: Any) -> bool:
        return bool(
            (underscore in data and at_underscore(data))
            or (dash in data and at_dash(data))
            or (k in data and at_k(data))
            or (w in data and at_w(data))
            or at_secret(data)
            or (z in data and at_z(data))
            or (at in data and at_at(data))
            or (equals in data and (question in data or ampersand in data or semicolon in data) and at_equals(data))
            or (a in data and at_a(data))
            or (b in data and at_b(data))
            or (j in data and at_j(data))
            or (s in data and at_s(data))
            or (capital_k in data and at_capital_k(data))
            or (capital_w in data and at_capital_w(data))
            or (capital_c in data and at_capital_c(data))
        )

    return hot


#: Whether a text, or encoded JSON, may hold a secret of a built-in kind: never a wrong no.
hot: Final = _looker(True)
#: Whether a text may hold the beginning of one, too.
warm: Final = _looker(True, "*")
hot_bytes: Final = _looker(False)
