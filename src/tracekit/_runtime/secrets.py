"""What secrets look like: the names they are stored under, the values, the formats of keys and tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, Final, Literal

from .._lazy import NamedTuple, expression

__all__ = [
    "CREDENTIALS",
    "FORMATS",
    "KEYS",
    "OPAQUE_FIELDS",
    "SECRETS",
    "SHAPES",
    "TOKENS",
    "Format",
    "Span",
    "Strength",
    "compile_all",
    "find",
    "form_of",
    "holds_secret",
    "key_like",
    "look",
    "look_in_python",
    "made_from",
    "names_secret",
    "places_in_python",
    "plain",
]

Span = tuple[int, int, str]

# -- names -------------------------------------------------------------------------------------------------------------
#
# What a name says about its value: the same rules for fields, headers, URL parameters, options, variables and texts
# (``password=…``).

#: How strong a hint a name is: ``secret``: nearly any value is one; ``credential``: a value with a digit; ``token``: a
#: value that looks like a key; ``authorization`` and ``cookie``: as such headers have; ``key``: like ``token``, except
#: in names of fields.
Strength = Literal["", "secret", "credential", "token", "authorization", "cookie", "key"]

#: Last words of a name, however it is spelled: ``clientSecret`` and ``X-Api-Key`` count as ``client_secret`` and
#: ``x_api_key``.
SECRETS: Final = frozenset("password passwd pwd pw pass passphrase passcode secret".split())  # noqa: SIM905
#: Words which before ``key`` make it one of these.
KEYS: Final = frozenset(
    [
        "access",
        "account",
        "admin",
        "api",
        "auth",
        "client",
        "deploy",
        "encryption",
        "hmac",
        "jwt",
        "license",
        "master",
        "private",
        "secret",
        "service",
        "shared",
        "signing",
        "ssh",
        "storage",
        "subscription",
    ]
)
#: Words which before ``token`` make it a credential.
CREDENTIALS: Final = frozenset("access api auth authentication bearer bot id refresh security session".split())  # noqa: SIM905
TOKENS: Final = frozenset("token auth credential credentials jwt".split())  # noqa: SIM905
#: Names that end like a secret but are not.
NOT_SECRET: Final = frozenset(
    """
    page_token next_page_token next_token prev_token previous_token
    sync_token continuation_token cursor_token start_token stop_token end_token
    eos_token bos_token pad_token unk_token mask_token sep_token cls_token special_token first_token last_token
    cache_key sort_key primary_key foreign_key partition_key row_key
    range_key public_key idempotency_key routing_key dedup_key websocket_key
    """.split()  # noqa: SIM905
)
#: Fields of model providers with opaque data that their servers need back unchanged.
OPAQUE_FIELDS: Final = frozenset(
    ["encrypted_content", "signature", "thought_signature", "thoughtSignature", "b64_json", "embedding"]
)

#: Words after which a name continues without changing its meaning.
_AFTER: Final = frozenset(
    """
    dev prod production staging test live old new current value default primary secondary backup again confirm confirmation
    repeat header string
    """.split()  # noqa: SIM905
)
_HUMP: Final = expression(r"(?<=[a-z0-9])(?=[A-Z])")
#: Small letters and digits as ``a``, capital letters as ``A``.
_KINDS: Final = str.maketrans("abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", "a" * 36 + "A" * 26)
_TOGETHER: Final = (
    *sorted(SECRETS - {"pass", "pwd", "pw"}),
    *(f"{word}key" for word in sorted(KEYS - {"client", "license", "service"})),
)


def plain(name: str) -> str:
    """Return a name in lower case, its words joined by ``_``."""
    if "aA" in name.translate(_KINDS):
        name = _HUMP.sub("_", name)
    return _ascii_lower(name).replace("-", "_").replace(".", "_")


@lru_cache(maxsize=4096)
def names_secret(name: str) -> Strength:
    """Return what a name says about its value; empty if nothing."""
    if len(name) > 200 or name[-1:] in (" ", "\t"):
        return ""
    words = [word for word in plain(name).split("_") if word]
    while len(words) > 1 and (words[-1] in _AFTER or words[-1].isdigit()):
        words.pop()
    if not words:
        return ""
    last = words[-1].rstrip("0123456789") or words[-1]
    before = words[-2] if len(words) > 1 else ""
    if f"{before}_{last}" in NOT_SECRET or "_".join(words) in NOT_SECRET:
        return ""
    if last in ("authorization", "auth") and (last == "authorization" or plain(name).endswith("_header")):
        return "authorization"
    if last in ("cookie", "cookies", "cookie2"):
        return "cookie"
    if last in SECRETS or last.endswith(_TOGETHER) or (last == "key" and before in KEYS):
        return "secret"
    if last.endswith("token") and (before in CREDENTIALS or last[:-5] in CREDENTIALS):
        return "credential"
    if last == "token" and before and name.isupper():  # a variable
        return "credential"
    if last in TOKENS or last.endswith("token"):
        return "token"
    return "key" if last in ("key", "sig", "signature", "bearer") else ""


# -- values ------------------------------------------------------------------------------------------------------------
#
# Whether a value can be a secret. Words, sentences, paths and addresses are not, whatever their name.

#: Texts that only stand for a secret.
_STAND_IN: Final = expression(
    r"(?is)\*+|•+|x{3,}|\.{2,}|-+|0+|<[^<>]*>|\$\{.*\}|\$\w+|%\w+%"
    r"|\{\{?[^{}]*\}?\}|.*your[-_ ].*|.*change[-_ ]?me.*"
    r"|(?:sk-)?(?:not?|without)[-_ ].*|(?:test|dummy|fake|mock)[-_ ]?(?:api)?[-_ ]?(?:key|token|secret|password)?\d{0,3}"
)
_PATH: Final = expression(r"(?:~|\.{0,2})/[\w./ -]*|[A-Za-z]:\\.*|[a-z][a-z0-9+.-]*://[^@\s]*", re.DOTALL)
_UUID: Final = expression(r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_CODE: Final = expression(
    r"[A-Za-z_][\w.]*[(\[].*[)\]]|(?:self|this|os|process|config|settings|env|args)\.[\w.]+", re.DOTALL
)
_SCHEME: Final = expression(r"(?i)(?:bearer|basic|token|apikey|digest|negotiate|aws4-hmac-sha256)\s+\S")
_SEGMENT: Final = expression("[A-Za-z0-9]{8,}")
_A_PAIR: Final = expression(r"[^\s=;,]{1,200}=\S")
_WORDS: Final = expression(r"[^\W\d_]+")
_SIGNS: Final = expression(r"[\s\-_.:,;/!?'’\"()…{}%<>&+*|•]+")
#: A word of a sentence, or in the name of a program.
_CASED: Final = expression("[A-Z]?[a-z]+(?:[A-Z][a-z]+){0,3}|[A-Z]+")
#: Words of forms and translations, of which their keys consist: ``forgot-password``.
_OF_FORMS: Final = frozenset(
    [
        "auth",
        "authorization",
        "confirm",
        "credentials",
        "error",
        "field",
        "forgot",
        "form",
        "hint",
        "input",
        "key",
        "label",
        "login",
        "min",
        "missing",
        "name",
        "new",
        "password",
        "passwords",
        "placeholder",
        "policy",
        "prompt",
        "required",
        "reset",
        "secret",
        "sign",
        "string",
        "text",
        "title",
        "token",
        "type",
        "user",
        "value",
    ]
)
_CAPITALS: Final = expression("[a-z][A-Z]")
#: ``NextPartNumberMarker``.
_HUMPS: Final = expression("[A-Z]?[a-z]{2,}(?:[A-Z][a-z]{2,})+")


def _random(text: str) -> bool:
    """Return whether a text has the entropy of a key: some run of letters and digits mixes both, or lower and upper
    case."""
    for match in _SEGMENT.finditer(text[:512]):
        run = match[0]
        if len(set(run)) < 4 or run.isdigit():
            continue
        if not run.isalpha() or (len(_CAPITALS.findall(run)) >= 2 and not _HUMPS.fullmatch(run)):
            return True
    return False


def key_like(value: str) -> bool:
    """Return whether a value has at least sixteen characters, with letters and digits, and is not a path, an address or
    a UUID."""
    return (
        len(value) >= 16
        and not any(map(str.isspace, value[:4096]))
        and _random(value)
        and not _PATH.fullmatch(value)
        and not _UUID.fullmatch(value)
    )


def _ordinary(value: str) -> bool:
    """Return whether a text is a word, a sentence or code, as found under the name of a secret in forms, schemas and
    translations."""
    if len(value) < 4:
        return True
    head = value[:512]
    rest = _SIGNS.sub("", head)
    if not rest or rest.isalpha():
        words = _WORDS.findall(head)
        if not all(len(word) <= 15 and _CASED.fullmatch(word) for word in words if word.isascii()):
            return False
        return (
            len(words) < 2
            or " " in head.strip()
            or not value.isascii()
            or any(word.lower() in _OF_FORMS for word in words)
        )
    if " " in head.strip():
        return not any(len(word) >= 6 and not word.isalpha() and _mixed(word) for word in head.split())
    return _CODE.fullmatch(value) is not None


def _mixed(word: str) -> bool:
    return any(map(str.isdigit, word)) and any(map(str.isalpha, word))


def holds_secret(strength: Strength, value: Any) -> bool:
    """Return whether ``value``, under a name of this ``strength``, is a secret."""
    if not strength or type(value) is not str or not value or _STAND_IN.fullmatch(value[:512]):
        return False
    if strength == "secret":
        return not _PATH.fullmatch(value) and not _ordinary(value)
    if strength == "credential":
        return _credential(value)
    if strength == "authorization":  # a decision may be named so, too
        return (_SCHEME.match(value) is not None and not _ordinary(value)) or _credential(value)
    if strength == "cookie":
        return (len(value) >= 6 and _A_PAIR.match(value) is not None) or key_like(value)
    return key_like(value)


def _credential(value: str) -> bool:
    return (
        len(value) >= 8
        and not any(map(str.isspace, value[:4096]))
        and (any(map(str.isdigit, value)) or not _ordinary(value))
        and not _PATH.fullmatch(value)
        and not _CODE.fullmatch(value)
    )


# -- formats -----------------------------------------------------------------------------------------------------------
#
# The formats of well-known keys: a prefix, then a minimum number of characters of an alphabet. The prefixes are facts
# documented by the providers; which are in use was compared with the rules of gitleaks 8 (MIT) and the plugins of
# detect-secrets 1.5 (Apache-2.0).

#: The alphabets of keys: digits and letters; with ``_`` and ``-``; hexadecimal; capitals; with dots; base64.
_ALPHABETS: Final = {
    "n": "[A-Za-z0-9]", "t": "[A-Za-z0-9_-]", "h": "[a-f0-9]", "u": "[A-Z0-9]", "d": "[A-Za-z0-9_.~-]",
    "b": "(?:[A-Za-z0-9+/=_-]|%2[BFbf]|%3[Dd])", "l": "[a-z0-9]",
}  # fmt: skip


class Format(NamedTuple):
    """Keys of one provider that begin with ``prefix``."""

    name: str
    prefix: str
    alphabet: str
    least: int


#: By provider: alphabet, minimum length after the prefix, prefixes.
_TABLE: Final = """
1password t100 ops_ | t30 A3-
adafruit n28 aio_
adobe h32 p8e-
age u50 AGE-SECRET-KEY-
alibaba n16 LTAI
anthropic t16 sk-ant-
anyscale n20 esecret_
apify n30 apify_api_
artifactory n60 AKCp
asaas b60 aact_
atlassian b100 ATATT3 ATCTT3
aws u16 AKIA ASIA ABIA ACCA AROA AIDA | b100 ABSK | b40 bedrock-api-key-
braintrust n30 bt-st-
browserbase t20 bb_live_
buildkite n30 bkua_
cartesia n20 sk_car_
cerebras n32 csk-
clojars l60 CLOJARS_
composio t16 comp_
databricks h32 dapi
daytona h60 dtn_
deepgram n30 dg_
definednetworking t40 dnkey-
digitalocean h32 dop_v1_ doo_v1_ dor_v1_
docker t20 dckr_pat_ dckr_oat_
doppler n30 dp.pt. dp.st. dp.sa. dp.ct.
duffel t40 duffel_test_ duffel_live_
dropbox t120 sl.
dynatrace d60 dt0c01.
e2b h30 e2b_
easypost n50 EZAK EZTK
elevenlabs h40 sk_
exa t24 exa-
facebook n60 EAAM EAAC EAAG
figma t30 figd_
firecrawl h28 fc-
fireworks n20 fw_
flutterwave n12 FLWSECK_TEST- FLWSECK-
flyio b40 fo1_ fm1r_ fm1a_ fm2_
frameio t60 fio-u-
github n30 ghp_ gho_ ghu_ ghs_ ghr_ | t40 github_pat_
gitlab t16 glpat- glrt- gldt- glcbt- glptt- glft- glimt- glagent- gloas- glsoat- glffct- glrtr-
google t30 AIza | t20 GOCSPX- ya29. 1//0 | t40 AQ.
grafana b30 glc_ glsa_
groq n20 gsk_
harness d40 sat. pat.
heroku t50 HRKU-AA
huggingface n24 hf_ api_org_
infracost n32 ico-
intra42 h60 s-s4t2ud- s-s4t2af-
jina t40 jina_
langfuse t30 sk-lf-
langsmith h24 lsv2_pt_ lsv2_sk_ ls__
linear n30 lin_api_ lin_oauth_
llamacloud n40 llx-
mapbox d60 sk.
mem0 n30 m0-
neon t40 napi_
newrelic n20 NRAK- NRJS- NRII- NRAA- NRIQ- NRRA-
notion n40 ntn_ secret_
npm n30 npm_
nvidia t40 nvapi-
octopus u24 API-
openai t16 sk-
openrouter h40 sk-or-v1-
openshift t40 sha256~
perplexity t20 pplx-
pinecone t40 pcsk_
plaid h20 access-sandbox- access-development- access-production-
planetscale d30 pscale_tkn_ pscale_oauth_ pscale_pw_
posthog n30 phx_ phs_
postman t50 PMAK-
prefect n34 pnu_
pulumi h40 pul-
pypi t40 pypi-
railway t30 rw_
readme n60 rdme_
replicate n30 r8_
resend t24 re_
rubygems h40 rubygems_
scalingo t40 tk-us-
sendgrid d50 SG.
sendinblue t60 xkeysib- xsmtpsib-
sentry b50 sntrys_ sntryu_
settlemint n12 sm_aat_ sm_pat_ sm_sat_
shippo h30 shippo_live_ shippo_test_
shopify h30 shpat_ shpca_ shppa_ shpss_
slack t16 xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp- xoxc- xoxd-
sonarqube n30 squ_ sqp_ sqa_
sourcegraph h30 sgp_ | h60 slk_
square t20 sq0atp- sq0csp- sq0idp- | t50 EAAA
stripe n16 sk_live_ sk_test_ rk_live_ rk_test_ sk_prod_ rk_prod_ whsec_
supabase t20 sbp_ sb_secret_
tavily t20 tvly-
terraform t50 .atlasv1.
together t30 tgp_v1_
twilio h32 SK AC
typeform d40 tfp_
vault t20 hvs. hvb. hvr.
vercel n20 vercel_ vcp_ vck_
voyage t30 pa-
wandb h30 wandb_v1_
xai n40 xai-
yandex t30 AQVN t1.
zapier t20 zpka_
"""


def _rows() -> Iterator[Format]:
    for line in _TABLE.strip().splitlines():
        name, *words = line.split()
        alphabet, least = "", 0
        for word in words:
            if word[0] in _ALPHABETS and word[1:].isdigit():
                alphabet, least = word[0], int(word[1:])
            elif word != "|":
                yield Format._make((name, word, alphabet, least))


#: By prefix.
FORMATS: Final = {row.prefix: row for row in _rows()}
#: Kinds whose format is not a prefix followed by characters, or that are recognised only by their context.
SHAPES: Final = (
    "airtable", "authorization", "azure", "basic", "bearer", "cloudflare", "discord", "field", "jwt", "mailchimp", "mailgun", "private-key",
    "telegram", "url-password",
    "user-password", "webhook",
)  # fmt: skip


def form_of(value: str) -> Format | None:
    """Return the format of a text that is a key and nothing else."""
    for width in _WIDTHS:
        row = FORMATS.get(value[:width])
        if (
            row is not None
            and len(value) >= width + row.least
            and re.fullmatch(_ALPHABETS[row.alphabet] + "+", value[width:])
        ):
            return row
    return None


# Where a key may begin: not within a word, but after an escape sequence of a URL, or of JSON inside a text.
_EDGE: Final = r"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2})|(?<=\\[nrtbf])|(?<=\\u[0-9A-Fa-f]{4}))"
#: How many characters of a secret are examined, and how many can belong to it.
_SEEN, _LONGEST = 512, 16384
#: Never followed by a key: base64 data, such as megabytes of an image, which contain every prefix by chance.
_OPAQUE: Final = f"[A-Za-z0-9+/]{{{_SEEN}}}|[A-Za-z0-9_-]{{{_SEEN}}}"
#: How many characters of a key must follow its prefix for the quick look to see it.
_FOLLOW: Final = 8


#: Compiled on first use: compiling all of them takes longer than many a program, and most texts need none.
_compiled: Final = cache(re.compile)


def _after(last: str) -> str:
    """Return an expression for ``last``, the final character of key prefixes, preceded by the rest of one of them."""
    widths: dict[int, list[str]] = {}
    for prefix in FORMATS:
        if prefix.endswith(last):
            widths.setdefault(len(prefix), []).append(re.escape(prefix[:-1]))
    before = [prefix[-3:-1] for prefix in FORMATS if prefix.endswith(last)]
    first, second = ("".join(sorted({pair[at] for pair in before})) for at in (0, 1))
    exact = "|".join(f"(?<=(?:{'|'.join(found)}){re.escape(last)})" for _, found in sorted(widths.items()))
    return f"(?<=[{first}][{second}]{re.escape(last)})(?:{exact})"


def _from_their_a() -> str:
    """Return an expression for the prefixes that don't end in a sign, from their last ``A`` on (none has two)."""
    found = [
        (row, row.prefix.rindex("A"))
        for row in FORMATS.values()
        if row.prefix[-1].isalnum() and "A" in row.prefix and row.prefix not in _ELSEWHERE
    ]
    return "|".join(
        (f"(?<={row.prefix[: at + 1]})" if at else "")
        + f"{row.prefix[at + 1 :]}{_ALPHABETS[row.alphabet]}{{{_FOLLOW}}}"
        for row, at in found
    )


#: Prefixes that are searched for by other letters of theirs.
_ELSEWHERE: Final = frozenset(("1//0", "dapi", "EZTK"))


_BODY: Final = "[A-Za-z0-9_-]"
#: The same if the key may be base64, also inside an address.
_BODY_64: Final = "[A-Za-z0-9_+/%-]"
_WORDS_AFTER: Final = "|".join(sorted(_AFTER, key=lambda word: (-len(word), word)))
_WORD_BEGINS: Final = "[{}][{}]".format(*("".join(sorted({word[at] for word in _AFTER})) for at in (0, 1)))
#: How a name may continue: see ``_AFTER``. At most one of the three alternatives can match. Few names reach the last,
#: which repeats a group and takes longer than everything else in the expression.
_MORE: Final = (
    r"(?:(?![_.0-9a-z-])|[_.-]{1,2}(?![_.0-9a-z-])"
    rf"|(?=[_.-]{{0,2}}(?:[0-9]|{_WORD_BEGINS}))(?:[_.-]{{0,2}}(?:[0-9]{{1,8}}|{_WORDS_AFTER})){{1,3}}[_.-]{{0,2}})"
)


def _goes_on(*, word: bool) -> str:
    """Return an expression for what follows a name that may have a value: the quick check, which most names in prose,
    and many in code, fail. ``word``: after ``:``, a word followed by a blank or a comma may be a value, too."""
    colon = ":" if word else r":(?![ ]?[a-z]{1,30}[ ,;)])"
    return (
        rf"(?![ \t][^=:])(?:[=>\\\"'\]0-9]|{colon}|[ \t](?:=|{colon})|{_WORD_BEGINS}"
        rf"|[_.-]{{1,2}}(?:{_WORD_BEGINS}|[0-9=:>\\\"'\]]|[ \t][=:>]))"
    )


_GOES_ON: Final = _goes_on(word=False)
#: Between a name and its value, in text or JSON: followed by an assignment, a next item, or the empty line of a form's
#: field.
_CLOSED: Final = r"[\\\"'\]]{0,9}(?:[ \t]|\\t|)"
_FORM: Final = r"\\{0,3}\"(?=[\\\r\n])(?:\\{1,3}r\\{1,3}n|\\{1,3}n|\r?\n){2}"
#: Up to three blanks, or their escapes.
_BLANKS: Final = r"(?:[ \t]{0,3}+(?!\\t)|(?=[ \t]{0,2}\\t)(?:[ \t]|\\t){0,3})"
#: What can't be a value of a single word: a quoted one, one in a list or an object of the log, or one with a digit or a
#: sign.
_QUOTED: Final = (
    r"\"(?!(?:\$\{[^\"]{0,100}\}|<[^\"<>]{0,100}>|[*x]{3,100})?\"[,}\]])|'|\\{1,15}[\"']|[bruf]\\{0,15}[\"']|\[(?!\])"
)
_SIGNED: Final = r"[^\s\"'<>,;&()\[\]{}\\0-9!@#^*~+]{0,100}+[0-9!@#^*~+]"
#: The minimum for a value of a bare ``token``: anything shorter is not a key.
_OF_A_KEY: Final = r"(?=\[|\S{16}|\S{0,15}\Z)"
#: A parameter with a shorter value, which can be decided at once.
_NO_KEY: Final = r"(?!=[^\s>=\[\\]\S{0,14}\s)"


def _is(value: str, kind: str, *, least: str = "", parameter: bool = True) -> str:
    """Return an expression for what follows a name that has a ``value``, or is assigned one for which ``least`` holds.
    Its groups mark the places where more distant text decides, too.

    ``field``: a next item, or none, of an object of the log, in which the name may itself be a value, of a field like
    ``name``. ``parameter``: a value in a URL or a connection string, which elsewhere may be a word of code.
    """
    assigned = rf"[=:](?=[>=]?{_BLANKS}{least}(?:{value}))"
    item = r",(?<=[\"'\]],)[ ]?(?=\\{0,15}[\"'\[{])(?!\\{0,15}\"(?!value)[^\"\\]{0,60}\\{0,15}\"[ ]?:)"
    attribute = r"[ ](?<=[\"'] )[ ]{0,3}value=(?=\\{0,15}[\"'])"
    element = rf">(?=(?:{value})[^<]{{0,500}}</)"
    decided = [assigned, item, attribute, element, rf"[,}}](?<=[^\\]\"[,}}])(?P<field_{kind}>)"]
    if parameter:
        decided.append(rf"={least}(?=[a-z]{{0,500}}(?:[^a-z\s<>&#]|\Z))(?P<parameter_{kind}>)")
    return rf"(?![ \t][^=:]){_MORE}(?:{_CLOSED}(?:{'|'.join(decided)})|{_FORM}(?={value}))"


_SOME_SECRET: Final = rf"{_QUOTED}|\{{\"\$t\"|{_SIGNED}"
_IS: Final = _is(_SOME_SECRET, "of_secret")
_IS_TOKEN: Final = _is(_SOME_SECRET, "of_token", least=_OF_A_KEY)
_PAIR: Final = r"[A-Za-z0-9_.-]{1,80}=[^\s;,\"'<>\\]"
_COOKIE: Final = rf"(?:{_PAIR}{{0,200}};[ ]?){{0,8}}{_PAIR}{{16}}"
_IS_COOKIE: Final = _is(rf"{_QUOTED}|\{{\"|{_COOKIE}", "of_cookie", parameter=False)
_IS_CREDENTIAL: Final = _is(
    rf"{_QUOTED}|\{{\"\$t\"|(?:(?:bearer|basic|token|apikey|digest)[ ]{{1,4}})?[^\s\"'<>,;\\]{{8}}",
    "of_header",
    parameter=False,
)
#: The last two letters of the words in ``KEYS``.
_BEFORE_KEY: Final = "|".join(sorted({word[-2:] for word in KEYS}))
_OPTION: Final = "--(?:[a-z]{1,20}-){0,3}(?:password|passwd|passphrase|pass|token|secret|key)"

_Verify = Callable[[str, int, bool], Span | None]


class Anchor(NamedTuple):
    """Where to look: at a character that not every word has, with what must surround it.

    ``lowered``: the text is in lower case. ``verify`` returns the secret at such a place in a text, if any; its last
    argument says whether the text may continue.
    """

    first: str
    pattern: str
    lowered: bool
    verify: _Verify
    #: One of these must be somewhere in the text, too.
    beside: str = ""
    #: An expression for the same places and more, which is quick to compile and to search; tried first.
    quick: str = ""


def _key(text: str, place: int, open: bool) -> Span | None:
    """A key whose prefix ends at the place."""
    at = place + 1
    for width in _WIDTHS:
        row = FORMATS.get(text[max(0, at - width) : at]) if width <= at else None
        if row is not None:
            return _body(text, row, at - width, at, open)
    return None


def _begun(text: str, place: int, open: bool) -> Span | None:
    """A key whose prefix contains the place."""
    for at in range(place, max(-1, place - 8), -1):
        for width in _WIDTHS:
            row = FORMATS.get(text[at : at + width])
            if row is not None and at + width > place and row.prefix[-1].isalnum():
                found = _body(text, row, at, at + width, open)
                if found is not None:
                    return found
    return None


def _body(text: str, row: Format, start: int, at: int, open: bool) -> Span | None:
    if not row.prefix.startswith(".") and not _compiled(_EDGE).match(text, start):
        return None
    if start >= _SEEN and _compiled(_OPAQUE).fullmatch(text, start - _SEEN, start) is not None:
        return None
    end = _run(text, at, row.alphabet, _SEEN)
    if end - at == _SEEN and _is_key(text, row, at, end):
        end = _run(text, at, row.alphabet, _LONGEST)
    if row.alphabet == "d":
        end = at + len(text[at:end].rstrip(".~"))
    if open and end == len(text):
        return (start, end, row.name) if not _compiled(_NO_KEY_YET).match(text, at) else None
    if end - at < row.least or not _is_key(text, row, at, end):
        return None
    if row.alphabet in "uh" and text[end : end + 1].isalnum():
        return None
    return start, end, row.name


_PIECES: Final = 10
#: A continuation that may be words: ``sk-learn-con…``.
_NO_KEY_YET: Final = r"(?:[a-z]{1,15}[-_.]){0,20}[a-z]{0,15}\Z"


def _is_key(text: str, row: Format, at: int, end: int) -> bool:
    body = text[at : min(end, at + _SEEN)]
    if row.alphabet in "uh":
        return len(set(body)) >= 4
    if _random(body) or _compiled("[A-Za-z0-9]{20}").search(body) is not None:  # no word is that long
        return True
    # Split into short pieces by its signs, a key still does not look like a series of words and numbers. Pieces of
    # lower-case letters don't count; a long text of them would take long.
    pieces = _compiled("(?<![A-Za-z0-9])[a-z]*[A-Z0-9][A-Za-z0-9]*").findall(body)
    return sum(len(piece) for piece in pieces if _mixed(piece) or _CAPITALS.search(piece)) >= _PIECES


def _run(text: str, at: int, alphabet: str, most: int) -> int:
    match = _compiled(f"{_ALPHABETS[alphabet]}{{0,{most}}}").match(text, at)
    return at if match is None else match.end()


def _shape(kind: str, pattern: str, partial: str | None = None, back: int = 0) -> _Verify:
    """Return a verification by one expression, whose group ``s`` (else the whole match) is the secret; it begins
    ``back`` characters earlier."""

    def verify(text: str, place: int, open: bool) -> Span | None:
        found = _compiled(pattern).match(text, max(0, place - back))
        if found is None and open and partial is not None:
            found = _compiled(partial).match(text, max(0, place - back))
        if found is None:
            return None
        start, end = found.span("s" if "s" in found.re.groupindex else 0)
        return (start, end, kind) if end > start else None

    return verify


def _first(*several: _Verify) -> _Verify:
    def verify(text: str, place: int, open: bool) -> Span | None:
        for one in several:
            found = one(text, place, open)
            if found is not None:
                return found
        return None

    return verify


_TOKEN: Final = r"[A-Za-z0-9._~+/=-]"
# A digit, a padding character, or a capital after a lower-case letter: what "Basic understanding" lacks.
_NO_WORD: Final = rf"(?={_TOKEN}{{0,200}}?(?:[0-9=]|[a-z][A-Z]))"
_OF_SCHEME: Final = rf"(?<![A-Za-z])(?:Bearer|BEARER) {{1,4}}(?P<s>{_NO_WORD}{_TOKEN}{{%s,8192}})%s"
_OF_BASIC: Final = rf"(?<![A-Za-z])Basic {{1,4}}(?P<s>{_NO_WORD}[A-Za-z0-9+/]{{%s,8192}}={{0,2}})%s"
_JWT: Final = r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,8192}\.[A-Za-z0-9_-]{4,8192}(?:\.[A-Za-z0-9_-]{0,8192}){0,4}"
# JSON that a binary stream wraps as base64 begins like a JWT, and may be cut anywhere.
_JWT_OPEN: Final = (
    r"(?<![A-Za-z0-9_-])(?<!\"bytes\":\")(?<!\"bytes\": \")eyJ[A-Za-z0-9_-]{0,8192}(?:\.[A-Za-z0-9_-]{0,8192}){0,4}\Z"
)
_JWT_ESCAPED: Final = _JWT.replace("(?<![A-Za-z0-9_-])", r"(?:(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2}))")
_URL: Final = r"://[^\s/@:?#\"'\\]{0,200}:(?P<s>[^\s/@\"'\\]{1,500})@"
# A port looks the same until the next chunk: up to five digits pass.
_URL_OPEN: Final = r"://[^\s/@:?#\"'\\]{0,200}:(?!\d{1,5}(?:[^A-Za-z0-9]|\Z))(?P<s>[^\s/@\"'\\]{1,500})\Z"
_TELEGRAM: Final = r"(?P<s>(?<![0-9])[0-9]{8,10}:AA[A-Za-z0-9_-]{31,33})(?![A-Za-z0-9_-])"
_DISCORD: Final = (
    r"(?<![A-Za-z0-9_-])[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,45}(?![A-Za-z0-9_-])"
)
_HOOKS: Final = (
    r"hooks\.slack\.com/(?:services|workflows|triggers)/(?P<s>[A-Za-z0-9_/+-]{20,200})"
    r"|discord(?:app)?\.com/api/webhooks/[0-9]{5,25}/(?P<d>[A-Za-z0-9_-]{20,200})"
    r"|webhook\.office\.com/webhookb2/(?P<o>[A-Za-z0-9@/-]{36,300})"
)
_CLOUDFLARE: Final = r"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2}))v1\.0-[a-f0-9]{24}-[a-f0-9]{100,200}"
_MAILCHIMP: Final = r"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2}))[0-9a-f]{32}-us[0-9]{1,2}(?![A-Za-z0-9])"
_MAILGUN: Final = (
    rf"{_EDGE}(?<![_./-])(?:key-[a-f0-9]{{32}}|[a-f0-9]{{32}}-[a-f0-9]{{8}}-[a-f0-9]{{8}})(?![A-Za-z0-9-])"
)
_AIRTABLE: Final = rf"{_EDGE}pat[A-Za-z0-9]{{14}}\.[a-f0-9]{{64}}(?![A-Za-z0-9])"
_AZURE: Final = (
    r"(?:(?<![A-Za-z0-9_~.-])|(?<=%[0-9A-Fa-f]{2}))[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}(?![A-Za-z0-9_~-])"
)


def _hook(text: str, place: int, open: bool) -> Span | None:
    start = max(
        text.rfind("hooks", 0, place + 1),
        text.rfind("discord", 0, place + 1),
        text.rfind("webhook", 0, place + 1),
        place - 12,
    )
    found = _compiled(_HOOKS).match(text, start)
    if found is None or found.lastgroup is None:
        return None
    return (*found.span(found.lastgroup), "webhook")


def _near(text: str, place: int, pattern: str, kind: str, back: int) -> Span | None:
    """Return the match of ``pattern`` that contains the place."""
    for found in _compiled(pattern).finditer(text, max(0, place - back), place + 400):
        if found.start() <= place < found.end():
            return (*found.span("s" if "s" in found.re.groupindex else 0), kind)
    return None


def _pem(text: str, place: int, open: bool) -> Span | None:
    found = _compiled(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----").match(text, place - 5)
    if found is None:
        return None
    end = text.find("-----END ", found.end())
    if end < 0:
        return found.start(), len(text), "private-key"
    last = _compiled("-----END [A-Z0-9 ]{0,40}-----").match(text, end)
    return found.start(), last.end() if last else end, "private-key"


def _curl(text: str, place: int, open: bool) -> Span | None:
    found = _compiled(r"-{1,2}(?:u|user|U|proxy-user)[ =]?[\"']?[^\s:\"']{1,200}:(?P<s>[^\s\"'\\]{1,500})").match(
        text, place
    )
    if found is None:
        return None
    at = text.rfind("curl", max(0, place - 1000), place)
    return None if at < 0 or "\n" in text[at:place] else (*found.span("s"), "user-password")


def _option(text: str, place: int, open: bool) -> Span | None:
    """``--password X``."""
    found = _compiled(rf"({_OPTION})[ ]{{1,2}}[\"']?(?P<s>[^\s\"'\\-][^\s\"'\\]{{0,500}})").match(text, place)
    if found is None or not holds_secret(names_secret(found[1]), found["s"]):
        return None
    return (*found.span("s"), "field")


WORD_CHARACTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
_WORD_BYTES: Final = WORD_CHARACTERS.encode()
_SEPARATED: Final = (
    r"(?:(?P<p>\\{0,7}[\"'])(?:,[ ]?\\{0,7}[\"'](?i:value)\\{0,7}[\"'][ ]?:|,|[ ]{1,4}(?i:value)=)[ ]?"
    r"|\\{0,7}[\"'\]]{0,2}[ \t]?(?:=>|:=|=(?!=)|:(?![:=]))[ \t]{0,3}"
    r"|\\{0,3}\"(?:(?:\\{1,3}r)?\\{1,3}n|\r?\n){2})[bBrRuUfF]?(?P<q>\\{0,7}[\"'])?"
)
_BARE: Final = r"(?![/$%]|https?:|\.{1,2}/)[^\s\"'<>,;&()\[\]{}\\]{1,500}"


def _named(text: str, place: int, open: bool) -> Span | None:
    """A value after its name."""
    last = _compiled(r"(?i:\w{0,24})" + f"(?i:{_MORE})").match(text, place)
    end = place if last is None else last.end()
    head = text[max(0, end - 80) : end]
    name = head[len(head.rstrip(WORD_CHARACTERS)) :]
    ahead = head[: len(head) - len(name)]
    if ahead.endswith("\\") and name[:1] in "nrtbf":  # of JSON inside a text
        name = name[1:]
    strength = names_secret(name.lstrip("-"))
    if not strength or (strength == "key" and ahead[-1:] not in ("?", "&", ";")):
        return None
    if text.startswith(">", end):
        return _element(text, ahead, end + 1, strength)
    between = _compiled(_SEPARATED).match(text, end)
    if between is None:
        return None
    if between["p"] and (
        not between["q"]
        or (
            strength not in ("authorization", "cookie", "credential")
            and "alue" not in between[0].lower()
            and name[:1] != "-"  # an option in the repr of a command
        )
    ):
        return None
    at = between.end()
    if between["q"]:
        return _quoted(text, at, between["q"], strength, open)
    bare = _compiled(_BARE).match(text, at)
    if strength == "authorization":
        bare = _compiled(r"(?i:(?:bearer|basic|token|apikey|digest)[ ]{1,4})?(?P<s>[^\s\"'<>,;\\]{8,500})").match(
            text, at
        )
        if bare is None or not (
            _compiled(_NO_WORD).match(text, bare.start("s")) and holds_secret("credential", bare["s"])
        ):
            return None
        return (*bare.span("s"), "authorization")
    if strength == "cookie":
        return _cookies(text, at)
    if bare is None:
        return None
    value = bare[0]
    if ahead[-1:] in ("?", "&", "#"):
        bare = _compiled(r"[^\s\"'<>&;#\\]{1,2000}").match(text, at) or bare
        value = bare[0]
        if strength in ("secret", "credential") and len(value) >= 6 and not value.isalpha():
            stands = _STAND_IN.fullmatch(value) or _PATH.fullmatch(value)
            return None if stands else (*bare.span(), "field")
    if strength == "secret" and ahead.rstrip(" ").endswith(";") and "=" in between[0]:  # a connection string
        return None if _STAND_IN.fullmatch(value) else (*bare.span(), "field")
    if open and bare.end() == len(text) and len(value) < 500:
        return (*bare.span(), "field") if len(value) >= 6 and _sign(value) else None
    if len(value) < 6 or not _sign(value) or text[bare.end() : bare.end() + 1] in ("(", "["):
        return None
    return (*bare.span(), "field") if holds_secret(strength, value) else None


def _cookies(text: str, at: int) -> Span | None:
    """The cookies of a header in a text, from the first that looks like a key."""
    line = _compiled(rf"(?:{_PAIR}{{0,2000}}(?:;[ ]?|(?![^\s,\"'<>\\]))){{1,40}}").match(text, at)
    if line is None:
        return None
    for pair in _compiled("=([^;]{16,})").finditer(text, at, line.end()):
        if key_like(pair[1]):
            return pair.start(1), at + len(line[0].rstrip("; ")), "field"
    return None


def _element(text: str, ahead: str, at: int, strength: Strength) -> Span | None:
    """The text of an XML element of that name."""
    found = _compiled(r"[^<>\s]{1,500}(?=</)").match(text, at)
    if found is None or not ahead.endswith("<") or not holds_secret(strength, found[0]):
        return None
    return (*found.span(), "field")


def _sign(value: str) -> bool:
    """Return whether a value has a digit or a sign, which an unquoted secret has: "password: required" is prose, and
    "password=os.environ[…]" is code."""
    return _compiled(r"[0-9!@#^*~+]").search(value) is not None


def _quoted(text: str, at: int, quote: str, strength: Strength, open: bool) -> Span | None:
    end, limit = text.find(quote, at, at + 4096), at + 4096
    while end > at and text[end - 1] == "\\" and not quote.startswith("\\"):
        end = text.find(quote, end + 1, limit)
    if end < 0:
        if not open or len(text) - at >= 4096:
            return None
        value = text[at:].rstrip("\\") if quote.startswith("\\") else text[at:]
        # What follows may make it a secret.
        return (
            (at, len(text), "field")
            if value and value[0] not in "$<{*%" and "\f" not in value and holds_secret(strength, value + "0x")
            else None
        )
    if quote.startswith("\\"):
        end = at + len(text[at:end].rstrip("\\"))
    value = text[at:end]
    if "\f" in value or not holds_secret(strength, value):
        return None
    if strength == "authorization":
        scheme = _SCHEME.match(value)
        at = at if scheme is None else scheme.end() + at - 1
    return at, end, "authorization" if strength == "authorization" else "field"


def _query(text: str, place: int, open: bool) -> Span | None:
    """The value of a URL parameter."""
    equals = text.index("=", place)
    head = text[max(0, equals - 80) : equals]
    name = head[len(head.rstrip(WORD_CHARACTERS + ".%")) :]
    if head[: len(head) - len(name)][-1:] not in ("?", "&", ";") or not names_secret(name):
        return None
    found = _compiled(r"[^&;#\s\"'<>\\]{1,2000}").match(text, equals + 1)
    if found is None:
        return None
    if (open and found.end() == len(text)) or holds_secret(names_secret(name), found[0]):
        return (*found.span(), "query")
    return None


def _dash(text: str, place: int, open: bool) -> Span | None:
    """The secret at a dash: an option of a command, or a key whose prefix ends there."""
    following = text[place + 1 : place + 2]
    if following == "-":
        return _option(text, place, open) or _curl(text, place, open)
    found = _key(text, place, open)
    if found is None and following in "uU":
        return _curl(text, place, open) or _near(text, place, _MAILCHIMP, "mailchimp", 33)
    return found or _near(text, place, _MAILGUN, "mailgun", 33)


def _dot(text: str, place: int, open: bool) -> Span | None:
    at = place + 1
    if text.startswith(("slack.com/", "com/api/webhooks/", "office.com/"), at):
        return _hook(text, place, open)
    found = _key(text, place, open)
    if found is None and text.startswith("0-", at):
        return _near(text, place, _CLOUDFLARE, "cloudflare", 2)
    found = found or _near(text, place, _AIRTABLE, "airtable", 17)
    return found or _near(text, place, _DISCORD, "discord", 28)


def _tilde(text: str, place: int, open: bool) -> Span | None:
    return _key(text, place, open) or _near(text, place, _AZURE, "azure", 6)


def _telegram(text: str, place: int, open: bool) -> Span | None:
    return _begun(text, place, open) or _near(text, place, _TELEGRAM, "telegram", 12)


_BEARER: Final = _shape("bearer", _OF_SCHEME % (12, ""), _OF_SCHEME % (4, r"\Z"))
_BASIC: Final = _shape("basic", _OF_BASIC % (10, ""), _OF_BASIC % (4, r"\Z"))


def _scheme(text: str, place: int, open: bool) -> Span | None:
    if text.startswith("BEGIN", place):
        return _pem(text, place, open)
    return _BEARER(text, place, open) or _BASIC(text, place, open)


_ANCHORS: Final = (
    # the names of secrets, each by a letter that not every word has
    Anchor(
        "k",
        rf"k(?:(?:ey(?:(?<=(?:{_BEFORE_KEY})key)|(?<=(?:{_BEFORE_KEY})[_.-]key))|en(?<=[a-z0-9_.-]token)){_IS}"
        rf"|en(?<=token)(?<![a-z0-9_.-]token){_NO_KEY}{_IS_TOKEN}"
        rf"|ies?(?:(?<=cookie)|(?<=cookies)){_IS_COOKIE})",
        True,
        _named,
        quick=rf"k(?:e[yn]|ies?){_GOES_ON}",
    ),
    Anchor(
        "p",
        rf"p(?:(?:ass(?>w(?:or|)d|phrase|code|)|w(?:d|)){_IS}"
        rf"|i[a-f0-9]{{{_FOLLOW}}}(?<=dapi.{{{_FOLLOW}}}))",
        True,
        _first(_named, _begun),
        quick=rf"p(?:ass(?>w(?:or|)d|phrase|code|){_GOES_ON}|w(?:d|){_GOES_ON}|i[a-f0-9]{{{_FOLLOW}}})",
    ),
    Anchor(
        "c",
        rf"cre(?:t(?<=secret)|dential(?:s|(?!s)|(?=s[te]))){_IS}",
        True,
        _named,
        quick=rf"cre(?:t|dential(?:s|)){_GOES_ON}",
    ),
    Anchor("j", rf"jwt{_IS}", True, _named, quick=f"jwt{_GOES_ON}"),
    Anchor(
        "",
        rf"auth(?>(?:orization)?){_IS_CREDENTIAL}",
        True,
        _named,
        quick=rf"auth(?>(?:orization)?){_goes_on(word=True)}",
    ),
    Anchor("=", r"=(?<=(?:key|sig|ure|uth)=)(?=[^&;#\s\"'<>\\]{8})", True, _query, "?&;"),
    # keys: where their prefix ends, or begins
    Anchor("_", rf"_(?={_BODY_64}{{{_FOLLOW}}}){_after('_')}", False, _key),
    Anchor(
        "-",
        rf"-(?:{_after('-')}(?={_BODY_64}{{{_FOLLOW}}})|us[0-9](?<=[0-9a-f]{{8}}-us[0-9])"
        r"|[a-f0-9]{8}(?:(?<=key-.{8})|(?<=[a-f0-9]{8}-.{8})-[a-f0-9]{8})"
        rf"|[uU](?<=[ nt\"]-.)(?=[^a-z])"
        rf"|-(?:user|proxy-user|(?:[a-z]{{1,20}}-){{0,3}}(?:password|passwd|passphrase|pass|token|secret|key)[ ]))",
        False,
        _dash,
    ),
    Anchor(
        ".",
        rf"\.(?:(?={_BODY}{{6}}(?:{_BODY}{{2}}|\.))(?:{_after('.')}|(?<=[A-Za-z0-9_-]\.)(?={_BODY}{{6}}\.{_BODY}{{27}}))"
        r"|[a-f0-9]{8}(?<=pat[A-Za-z0-9]{14}\..{8})|0-[a-f0-9]{8}(?<=v1\.0-.{8})|slack\.com/|com/api/webhooks/|office\.com/webhookb2/)",
        False,
        _dot,
    ),
    Anchor(
        "~",
        rf"~(?:(?<=[0-9]Q~)|(?<=sha256~))(?={_BODY}{{{_FOLLOW}}})",
        False,
        _tilde,
    ),
    Anchor(
        "A",
        rf"A(?={_BODY_64}{{{_FOLLOW}}})(?:{_from_their_a()}|A(?<=[0-9]:AA){_BODY}{{30}})",
        False,
        _telegram,
    ),
    Anchor("Z", rf"ZTK(?<=EZTK)(?={_BODY}{{{_FOLLOW}}})", False, _begun),
    Anchor("K", rf"K(?<=SK)(?=[a-f0-9]{{{_FOLLOW}}})", False, _begun),
    Anchor("/", rf"//0(?<=1//0){_BODY}{{{_FOLLOW}}}", False, _begun),
    # other formats
    Anchor(
        "J",
        f"J(?<=eyJ){_BODY}{{{_FOLLOW}}}",
        False,
        _first(_shape("jwt", _JWT, _JWT_OPEN, 2), _shape("jwt", _JWT_ESCAPED, None, 2)),
    ),
    Anchor("B", f"B(?:(?:earer |EARER |asic ) {{0,3}}{_TOKEN}{{4}}|EGIN (?<=-----BEGIN ))", False, _scheme),
    Anchor(
        ":",
        r"://[^\s/@:?#\"'\\]{0,200}:[^\s/@\"'\\]",
        False,
        _shape("url-password", _URL, _URL_OPEN),
    ),
)
_WIDTHS: Final = tuple(sorted({len(prefix) for prefix in FORMATS}, reverse=True))

# -- looking -----------------------------------------------------------------------------------------------------------
#
# The quick look, which says that a text contains nothing, and the search, which examines the same places closely. Each
# expression begins with one literal character, which is found quickly, and everything after it is bounded, so that both
# are linear.

#: A shorter text contains no secret, whatever its name.
SHORTEST: Final = 7
#: A text is searched in pieces of this size, so that other threads get their turn.
PIECE: Final = 1 << 20
OVERLAP: Final = 4096


@cache
def _of_anchor(one: Anchor, binary: bool, quick: bool = False) -> Any:
    """Return the expression, compiled when a text first has its character: compiling all of them takes longer than many
    a program."""
    pattern = one.quick if quick else one.pattern
    return expression(pattern.encode()) if binary else expression(pattern)


def compile_all() -> None:
    """Compile the expressions of the quick look, for a process that forks others, which inherit them."""
    for one in _ANCHORS:
        _ = _of_anchor(one, True).pattern
        if one.quick:
            _ = _of_anchor(one, True, quick=True).pattern


def _definition() -> bytes:
    """Return all that the quick look is defined by."""
    parts = [
        *(f"{one.first} {one.pattern} {one.lowered} {one.beside}" for one in _ANCHORS),
        VALUE_FIELD,
        PARAMETER,
        WORD_CHARACTERS,
        f"{SHORTEST} {PIECE} {OVERLAP} {BEFORE}",
    ]
    return "\n".join(parts).encode()


def made_from() -> str:
    """Return a fingerprint of the definition of the quick look; code compiled from it is valid as long as it is
    unchanged."""
    from hashlib import sha256

    return sha256(_definition()).hexdigest()


@cache
def _in_c() -> tuple[Callable[..., Any], ...] | None:
    """Return the compiled functions if they were built from these very expressions, with the same results."""
    # Not at the top: their tables are generated from this module, before anything else is installed.
    from .._native import quick_look, sha256_hex

    return quick_look(sha256_hex(_definition()))


@cache
def look(binary: bool) -> Callable[[Any], bool]:
    """Return the quick look at texts, or at bytes: whether one may contain a secret of these kinds. A no is never
    wrong."""
    compiled = _in_c()
    if compiled is None:
        return look_in_python(binary)
    at_bytes, at_text, *_ = compiled

    def hot(text: str) -> bool:
        found = at_text(text)
        return look_in_python(False)(text) if found is None else found

    return at_bytes if binary else hot


@cache
def passing() -> Callable[[str, str, int, tuple[str, ...]], str | None]:
    """Return a function that checks a piece of a text: given the end of the previous text and the piece, it returns the
    new end, ``keep`` characters long; or ``None`` if these may contain a secret, need a closer look, or contain one of
    the ``starts`` of known secrets."""
    compiled = _in_c()
    return passing_in_python if compiled is None else compiled[3]


def passing_in_python(tail: str, piece: str, keep: int, starts: tuple[str, ...]) -> str | None:
    """``passing``, using the expressions."""
    window = tail + piece
    for start in starts:  # runs for each piece of a stream: a generator costs more than the search
        if start in window:
            return None
    return None if "://" in window or look_in_python(False)(window) else window[-keep:]


@cache
def look_in_python(binary: bool) -> Callable[[Any], bool]:
    """``look``, using the expressions."""

    # Written out: a loop takes three times as long on the small values that most are.
    by_first = {one.first: _of_anchor(one, binary) for one in _ANCHORS}
    at_underscore, at_dash, at_dot, at_tilde, at_slash, at_colon = (by_first[sign] for sign in "_-.~/:")
    at_a, at_z, at_k, at_j, at_b, after_equals = (by_first[sign] for sign in "AZKJB=")
    after_k, after_p, after_c, after_j, after_auth = (by_first[sign] for sign in ("k", "p", "c", "j", ""))
    may_k, may_p, may_c, may_j, may_auth = (_of_anchor(one, binary, quick=True) for one in _ANCHORS if one.quick)
    underscore, dash, dot, tilde, slash = b"_-.~/" if binary else "_-.~/"
    a, z, k, j, b = b"AZKJB" if binary else "AZKJB"
    # Bytes are complete values, in which a URL with a password has an "@"; a text may end before it.
    at_sign: Any = b"@" if binary else "@"
    small_k, small_p, small_c, small_j = b"kpcj" if binary else "kpcj"
    equals, question, ampersand, semicolon = b"=?&;" if binary else "=?&;"
    # ``in`` searches for four characters more slowly than the expression, but starts sooner.
    authorization: Any = b"auth" if binary else "auth"
    most = PIECE + OVERLAP

    def hot(data: Any) -> bool:
        size = len(data)
        if size < SHORTEST:
            return False
        if size > most:
            return any(hot(data[at : at + most]) for at in range(0, size, PIECE))
        if (
            (underscore in data and at_underscore.search(data))
            or (dash in data and at_dash.search(data))
            or (dot in data and at_dot.search(data))
            or (tilde in data and at_tilde.search(data))
            or (
                slash in data and (at_slash.search(data) or ((not binary or at_sign in data) and at_colon.search(data)))
            )
            or (a in data and at_a.search(data))
            or (z in data and at_z.search(data))
            or (k in data and at_k.search(data))
            or (j in data and at_j.search(data))
            or (b in data and at_b.search(data))
        ):
            return True
        data = data.lower() if binary or data.isascii() else _ascii_lower(data)
        return bool(
            (small_k in data and (at := may_k.search(data)) and _stands(data, at, after_k, binary))
            or (small_p in data and (at := may_p.search(data)) and _stands(data, at, after_p, binary))
            or (small_c in data and (at := may_c.search(data)) and _stands(data, at, after_c, binary))
            or (small_j in data and (at := may_j.search(data)) and _stands(data, at, after_j, binary))
            or (
                (size > 500 or authorization in data)
                and (at := may_auth.search(data))
                and _stands(data, at, after_auth, binary)
            )
            or (
                equals in data
                and (question in data or ampersand in data or semicolon in data)
                and after_equals.search(data)
            )
        )

    return hot


#: The fields that may hold the value of a name that is itself a field's value.
VALUE_FIELD: Final = '"(?:value|content|text|default|body)":'
#: The value of a parameter, and how many characters before its name are examined.
PARAMETER: Final = r"(?=[^\s\"'<>&;#\\]{6})[A-Za-z]*[^A-Za-z\s\"'<>&;#\\]"
BEFORE: Final = 80


def _stands(small: Any, first: re.Match[Any], names: re.Pattern[Any], binary: bool) -> bool:
    """Return whether, from the ``first`` of these names on, a value may follow one, or be in another field, where their
    expression leaves that open."""
    match = names.search(small, first.start())
    if match is None or match.lastgroup is None:
        return match is not None
    parameters = _has_parameters(small)
    fields = binary and _compiled(VALUE_FIELD.encode()).search(small) is not None
    matches = names.finditer(small, match.start())
    if not parameters and not fields:
        return None in map(_GROUP, matches)
    return any(_decides(small, match, parameters, fields) for match in matches)


_GROUP: Final = attrgetter("lastgroup")


def _has_parameters(small: Any) -> bool:
    return any(sign in small for sign in (b"?&;#" if type(small) is bytes else "?&;#"))


def _decides(small: Any, match: re.Match[Any], parameters: bool, fields: bool) -> bool:
    """Return whether a value may be there; ``parameters``, ``fields``: whether the text has any."""
    group = match.lastgroup
    if group is None:
        return True
    return parameters and _is_parameter(small, match) if group.startswith("parameter") else fields


def _is_parameter(small: Any, match: re.Match[Any]) -> bool:
    """Return whether the name of a match is that of a parameter, or of a part of a connection string."""
    start, binary = match.start(), type(small) is bytes
    before = small[max(0, start - BEFORE) : start].rstrip(_WORD_BYTES if binary else WORD_CHARACTERS)
    sign = before[-1:]
    if sign in (b"?&#" if binary else "?&#"):
        return (
            bool(sign) and _compiled(PARAMETER.encode() if binary else PARAMETER).match(small, match.end()) is not None
        )
    semicolon: Any = b";" if binary else ";"
    return bool(before.rstrip(b" " if binary else " ").endswith(semicolon))


def _ascii_lower(text: str) -> str:
    """Return a text in lower case as bytes would be, so that each letter stays one."""
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


@cache
def _finders() -> tuple[tuple[Anchor, re.Pattern[str], re.Pattern[str]], ...]:
    return tuple((one, _of_anchor(one, False, quick=bool(one.quick)), _of_anchor(one, False)) for one in _ANCHORS)


def find(text: str, *, open: bool = False) -> Iterator[Span]:
    """Yield the secrets of these kinds in a text, in no order, some of them twice. ``open``: more may follow, and what
    may be the beginning of a secret at the end counts as one. Non-text characters end a secret: every image contains
    the name of one by chance."""
    text = _legible(text)
    after = [0] * len(_ANCHORS)
    for number, place in _places()(text):
        if place >= after[number]:
            found = _ANCHORS[number].verify(text, place, open)
            if found is not None:
                yield found
                after[number] = found[1]


#: Characters that text does not contain: control characters, except those of lines and terminals, and those of binary
#: data read as characters.
_CONTROLS: Final = bytes([*range(9), *range(14, 27), *range(28, 32), 127])
_OF_DATA: Final = bytes(range(0x80, 0xA0))
_ILLEGIBLE: Final = dict.fromkeys(_CONTROLS, "\f")
_NO_TEXT: Final = {**_ILLEGIBLE, **dict.fromkeys(range(0x80, 0x100), "\f")}


def _legible(text: str) -> str:
    """Return ``text``, of the same length, with non-text characters replaced."""
    try:
        data = text.encode("latin-1")
    except UnicodeEncodeError:
        data = text.encode("utf-8", "surrogatepass")
    else:
        if not text.isascii() and len(data.translate(None, _OF_DATA)) < len(data):
            return text.translate(_NO_TEXT)
    return text if len(data.translate(None, _CONTROLS)) == len(data) else text.translate(_ILLEGIBLE)


@cache
def _places() -> Callable[[str], Iterable[tuple[int, int]]]:
    """Return a function that yields the places in a text to examine closely: the anchor's number and the place, in
    order for each anchor."""
    compiled = _in_c()
    if compiled is None:
        return places_in_python
    at_text = compiled[2]

    def places(text: str) -> Iterable[tuple[int, int]]:
        found = at_text(text)
        return places_in_python(text) if found is None else found

    return places


def places_in_python(text: str) -> Iterator[tuple[int, int]]:
    """``_places``, using the expressions."""
    small = text.lower() if text.isascii() else _ascii_lower(text)
    for number, (one, quick, pattern) in enumerate(_finders()):
        source = small if one.lowered else text
        if one.first not in source or (one.beside and not any(sign in source for sign in one.beside)):
            continue
        first = quick.search(source)
        if first is None:
            continue
        parameters = None
        for match in pattern.finditer(source, first.start()):
            if match.lastgroup is not None and parameters is None:
                parameters = _has_parameters(source)
            if _decides(source, match, bool(parameters), False):
                yield number, match.start()
