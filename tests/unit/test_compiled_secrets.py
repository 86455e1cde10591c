"""The compiled quick look for secrets answers as the expressions in Python do, whatever it looks at."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import examples
from tests.unit.test_secret_formats import BLANKS, COMBINATIONS, PIECES, planted
from tracekit._runtime import secrets
from tracekit._runtime.secrets import (
    FORMATS,
    OVERLAP,
    PIECE,
    look_in_python,
    made_from,
    passing_in_python,
    places_in_python,
)

compiled: Any = pytest.importorskip("tracekit._native._compiled", reason="this installation has no C extension")
LOOKS = compiled.quick_look(made_from())

#: What texts with secrets are made of: names, prefixes, what stands between, and what keys are made of.
PARTS = st.one_of(
    st.sampled_from([*PIECES, *BLANKS]),
    st.sampled_from([*PIECES, *BLANKS]).map(str.upper),
    st.sampled_from(sorted(FORMATS)),
    st.sampled_from(
        [
            "eyJ",
            "Bearer ",
            "Basic ",
            "://",
            "@",
            "-----BEGIN ",
            "-us1",
            "--password ",
            "v1.0-",
            '"value":',
            "\x1c",
            "\x0b",
        ]
    ),
    st.text("abAB09_-+/=~.%:@", min_size=4, max_size=40),
    st.text("0123456789abcdef", min_size=8, max_size=40),
    st.text(max_size=6),
)
TEXTS = st.lists(PARTS, max_size=14).map("".join)


def agree(text: str) -> None:
    """Both say the same of a text as it is and in JSON, whole and without its end; of one that is not ASCII the compiled one nothing."""
    at_bytes, at_text, places, piece = LOOKS
    raw = text.encode("utf-8", "surrogatepass")
    for data in (raw, json.dumps(text).encode(), raw[:-1], raw[:-3]):
        assert at_bytes(data) is look_in_python(True)(data), data
    half = len(text) // 2
    for keep in (1, 5, 64):
        for starts in ((), ("://", "@"), ("\u00e9", text[half - 1 : half + 2] or "-"), (text + "-",)):
            given = (text[:half], text[half:], keep, starts)
            end = piece(*given)
            assert end in (None, passing_in_python(*given)), text
            if len(text) < 4096 and text.isascii():
                assert end == passing_in_python(*given), text
    for one in (text, json.dumps(text), text[:-1]):
        assert at_text(one) is (look_in_python(False)(one) if one.isascii() else None), one
        assert secrets.look(False)(one) is look_in_python(False)(one)
        found = places(one)
        assert (None if found is None else sorted(found)) == (
            sorted(places_in_python(one)) if one.isascii() else None
        ), one


def test_it_is_made_of_these_expressions() -> None:
    """It is used where it was made of the very expressions that are in use, and not where one of them is another."""
    assert LOOKS is not None, "compile it again: python hatch_build.py"
    assert compiled.quick_look("0" * 64) is None
    with pytest.raises(TypeError):
        compiled.quick_look(None)
    for look, wrong in zip((*LOOKS[:3], *LOOKS[:3]), ("a text", b"bytes", b"bytes", None, None, None), strict=True):
        with pytest.raises(TypeError):
            look(wrong)
    for several, error in (
        (("a", "b", 1), TypeError),
        (("a", b"b", 1, ()), TypeError),
        ((None, "b", 1, ()), TypeError),
        (("a", "b", "1", ()), TypeError),
        (("a", "b", 1, ["a"]), TypeError),
        (("a", "b", 1, (b"a",)), TypeError),
        (("a", "b", 0, ()), ValueError),
    ):
        with pytest.raises(error):
            LOOKS[3](*several)


SIGNS = ("1", "'", '"', "=c", ">", "\\", "[", "?", ";", "")


@pytest.mark.parametrize("name", ["password", "secret", "jwt", "access_token", "cookie", "token", "private_key_1"])
@pytest.mark.parametrize("between", ["=", ": ", ' = "', "\\t=\\t", "=b\\"])
def test_a_sign_at_any_distance(name: str, between: str) -> None:
    """What only a value has may be near a name or far from it, or not be there: names behind one another share the search for it."""
    deep = examples(4) > 1  # else half of the signs at each distance, the other ones at the next, and with other names
    for distance in (*range(120), 150, 169, 170, 171, 172, 173, 190, 300, 420, 440, 460):
        for sign in SIGNS if deep else SIGNS[(distance + len(name)) % 2 :: 2]:
            plain = f"the {name}{between}{'v' * distance}{sign}, and then the {name}{between} of nobody"
            for one in (plain, f"{name} " * 3 + plain, f"{sign} {name} {plain}"):
                assert LOOKS[1](one) is look_in_python(False)(one), one
                assert sorted(LOOKS[2](one)) == sorted(places_in_python(one)), one
                assert LOOKS[0](one.encode()) is look_in_python(True)(one.encode()), one


@settings(max_examples=examples(1000))
@given(TEXTS)
def test_any_text(text: str) -> None:
    """Texts that are made of names and beginnings of keys, and of anything else."""
    agree(text)


def test_secrets_in_their_places() -> None:
    """Secrets of all kinds where they stand, whole and with something else in the middle of them."""
    rng = random.Random(5)
    yes = 0
    for what, where in rng.sample(COMBINATIONS, 1500):
        value = planted(what, where, rng)[0]
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        agree(text)
        yes += LOOKS[0](text.encode())
        at = rng.randrange(len(text))
        agree(text[:at] + rng.choice([*PIECES, ""]) + text[at + rng.randint(0, 3) :])
    assert yes > 1000


@pytest.mark.parametrize("before", [0, PIECE - 40, PIECE, PIECE + OVERLAP - 40, PIECE + OVERLAP, 2 * PIECE])
def test_long_texts(before: int) -> None:
    """A secret at any place of a text that is looked through in pieces."""
    for secret in (
        "ghp_a2cdefghijklmnopqrstuvwxyz0123456789",
        "password=hunter2!x ",
        "https://a.example/?sig=a2cdefgh&b=1",
    ):
        text = "x " * (before // 2) + secret + " x" * 40
        agree(text)
        assert LOOKS[0](text.encode())
        agree(text.replace("=", "").replace("_", ""))


@pytest.mark.parametrize("kind", [bytes, str])
def test_short_ones(kind: type) -> None:
    """What has a few characters has no secret, and what has a few more ends where it ends."""
    rng = random.Random(6)
    letters = "".join(dict.fromkeys("".join(FORMATS) + 'pwd=:"token key'))
    for _ in range(3000):
        text = "".join(rng.choice(letters) for _ in range(rng.randint(0, 9)))
        if kind is str:
            assert LOOKS[1](text) is look_in_python(False)(text)
            assert sorted(LOOKS[2](text)) == sorted(places_in_python(text))
        else:
            assert LOOKS[0](text.encode()) is look_in_python(True)(text.encode())


#: Texts without and with names of secrets, and what the look at one character of them may cost at most, in instructions. A recorded model
#: call of 10 KB takes 7,000,000 (``benchmarks.instructions``), so that the dearest of these adds a quarter.
DENSE = {
    "The invoice of October came late, so that we paid it in the second week, and the clerk wrote back the same day. ": 12,
    "The password of October came late, so that the token expired. A cookie: whoever has a passphrase signs in. ": 60,
    '10.0.0.17 - - [03/Nov/2026:12:00:01 +0000] "GET /items?page=3&token=17b20 HTTP/1.1" 200 5120 "-" "client/2.1" ': 40,
    "password=": 210,
}

COUNTED = """
import sys
from tracekit._native._compiled import quick_look
look = quick_look(sys.argv[1])[0]
for piece in sys.argv[2:]:
    for size in (10_000, 200_000):
        assert look((piece * (size // len(piece) + 1))[:size].encode()) is False
"""


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="instructions are counted by Valgrind")
def test_texts_full_of_names(tmp_path: Path) -> None:
    """What the look costs grows with the length of a text and no faster, and names of secrets close to one another make it no search of
    all that follows each: counted in instructions, so that it is the same on any machine."""
    command = [
        "valgrind", "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=look_at_bytes", "--dump-after=look_at_bytes",
        f"--callgrind-out-file={tmp_path / 'out'}", sys.executable, "-c", COUNTED, made_from(), *DENSE,
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    counted = [
        int(re.search(r"^totals: (\d+)$", (tmp_path / f"out.{number}").read_text(), re.MULTILINE)[1])  # type: ignore[index]
        for number in range(1, 2 * len(DENSE) + 1)
    ]
    for (piece, limit), short, long in zip(DENSE.items(), counted[::2], counted[1::2], strict=True):
        assert 10_000 < short <= limit * 10_000, (piece, short)
        assert long <= 20.5 * short, (piece, long / short)
