"""Recorded exceptions come back as what they were, or as ``RecordedError`` with the same text."""

from __future__ import annotations

import asyncio
import decimal
import io
from http.client import HTTPMessage
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError, URLError

import jsonschema
import orjson
import pydantic
import pytest
from pydantic_core import PydanticCustomError

from tests.support.ids import shown
from tracekit import traced_tool
from tracekit._values import dumps, exception_to_json
from tracekit._values.decoding import shortfalls
from tracekit.errors import NotReplayableError, RecordedError
from tracekit.integration import exception_from_json, from_json, to_json


class Custom(Exception):
    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"failed with {code}")
        self.code, self.detail, self.client = code, detail, object()


class Texted(Exception):
    def __str__(self) -> str:
        return f"text of {self.args[0]}"


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Forgetful(Exception):
    def __init__(self, handle: object) -> None:
        self._handle = handle

    def __str__(self) -> str:
        return f"handle {type(self._handle).__name__}"


class Disk(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(28, "disk full", path)


class Abort(BaseException):
    """Of the program's own, and not for ``except Exception``."""


def _local() -> BaseException:
    class Local(Exception):
        pass

    return Local("where")


def _back(exc: BaseException) -> Any:
    notes: list[str] = []
    return exception_from_json(orjson.loads(dumps(exception_to_json(exc, notes))))


def _group() -> BaseException:
    return ExceptionGroup("many", [ValueError(1), ExceptionGroup("inner", [KeyError("k")])])


@pytest.mark.parametrize(
    "exc",
    [
        *(
            ValueError("x", 1),
            KeyError("a"),
            OSError(2, "no", "file"),
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
            StopIteration(4),
        ),
        *(
            Custom(5, detail="d"),
            Texted("a"),
            Disk("/x"),
            asyncio.CancelledError("c"),
            KeyboardInterrupt(),
            SystemExit(3),
            Abort("own"),
            ImportError("m", name="n"),
        ),
        *(
            _group(),
            BaseExceptionGroup("base", [KeyboardInterrupt()]),
            TimeoutError(),
            SyntaxError("s", ("f", 1, 2, "t")),
            ValueError("\ud800"),
        ),
    ],
    ids=shown,
)
def test_same_type_and_text(exc: BaseException) -> None:
    """Type, text and arguments are the recorded ones."""
    back = _back(exc)
    assert type(back) is type(exc)
    assert str(back) == str(exc)
    assert repr(back.args) == repr(exc.args)


def test_attributes() -> None:
    """Attributes that can be recorded are there, of built-in exceptions too; others are not, and do no harm."""
    back = _back(Custom(5, detail="d"))
    assert (back.code, back.detail, hasattr(back, "client")) == (5, "d", False)
    assert (_back(Disk("/x")).errno, _back(Disk("/x")).filename) == (28, "/x")
    assert _back(ImportError("m", name="n")).name == "n"


@pytest.mark.parametrize("name", ["obj", "exceptions", "message", "code", "name", "value", "_private", "é"])
def test_attributes_of_every_name(name: str) -> None:
    """An exception's own attribute comes back whatever it is called, also if a built-in exception has one of that name."""
    error = KeyError("k")
    setattr(error, name, {"a": (1, 2)})
    assert getattr(_back(error), name) == {"a": (1, 2)}


def test_no_init_runs() -> None:
    """An exception's own ``__init__`` is not called."""

    tree = exception_to_json(Custom(5, detail="d"))
    original = Custom.__init__
    try:
        Custom.__init__ = lambda self, *args, **kwargs: pytest.fail("called")  # type: ignore[method-assign]
        assert type(exception_from_json(tree)) is Custom
    finally:
        Custom.__init__ = original  # type: ignore[method-assign]


@pytest.mark.parametrize("exc", [GeneratorExit("g"), Forgetful(object()), Silent()], ids=shown)
def test_others_are_recorded_errors(exc: BaseException) -> None:
    """What can't be made again faithfully is a ``RecordedError`` with the same text that names the type."""
    recorded = exception_to_json(exc)
    back = exception_from_json(recorded)
    if type(back) is not type(exc):
        assert type(back) is RecordedError
        assert back.type_name == recorded["type"]
    assert type(back) is RecordedError or type(exc) is Silent
    if type(exc) is not Silent:
        assert str(back) == str(exc) == recorded["text"]


def test_causes_contexts_and_notes() -> None:
    """Cause, context, its suppression, and notes come back."""
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError as error:
        error.add_note("a note")
        back = _back(error)
    assert type(back.__cause__) is KeyError
    assert back.__suppress_context__
    assert back.__notes__ == ["a note"]
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None
    except ValueError as error:
        back = _back(error)
    assert back.__cause__ is None
    assert type(back.__context__) is KeyError
    assert back.__suppress_context__


def test_members_of_a_group() -> None:
    """The members of a group are there, groups in it too."""
    back = _back(_group())
    assert [type(member) for member in back.exceptions] == [ValueError, ExceptionGroup]
    assert type(back.exceptions[1].exceptions[0]) is KeyError


def test_tracebacks() -> None:
    """File, line, function and source line of each frame are recorded, of a deep one both ends; not those of tracekit
    between two tools."""

    @traced_tool(side_effect="read_only")
    def down(n: int) -> None:
        if n:
            down(n - 1)
        raise ValueError("deep")

    with pytest.raises(ValueError) as caught:
        down(200)
    frames = exception_to_json(caught.value)["traceback"]
    assert len(frames) == 64
    assert {frame["file"] for frame in frames} == {__file__}
    assert frames[0]["code"] == "down(200)"
    assert frames[-1]["function"].endswith("down")
    assert frames[-1]["code"] == 'raise ValueError("deep")'


def test_loops_end() -> None:
    """Causes that form a loop, and long chains, end."""
    first, second = ValueError(1), ValueError(2)
    first.__cause__, second.__cause__ = second, first
    assert type(_back(first).__cause__) is ValueError
    exc = ValueError("0")
    for number in range(300):
        following = ValueError(str(number))
        following.__cause__ = following.__context__ = exc
        exc = following
    assert str(_back(exc)) == "299"
    forked = ValueError("0")
    for number in range(40):
        following = ValueError(str(number))
        following.__cause__, following.__context__ = forked, ExceptionGroup("g", [forked])
        forked = following
    assert str(_back(forked)) == "39"


def test_exceptions_are_values_too() -> None:
    """An exception in a result (``gather(return_exceptions=True)``) comes back in its place."""
    back = from_json(orjson.loads(dumps(to_json([1, ValueError("x"), (KeyError("k"),)]))))
    assert [type(item) for item in back] == [int, ValueError, tuple]
    assert str(back[1]) == "x"


@pytest.mark.parametrize(
    "tree",
    [
        *(
            {},
            {"type": 1, "text": "x"},
            {"type": "builtins:ValueError"},
            {"type": "builtins:ValueError", "text": "x", "members": [1]},
        )
    ],
    ids=shown,
)
def test_malformed_trees(tree: Any) -> None:
    """A malformed exception is refused as such."""
    with pytest.raises(NotReplayableError):
        exception_from_json(tree)


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "subprocess:Popen",
        "builtins:GeneratorExit",
        "builtins:int",
        "nowhere:X",
        "builtins:BaseException",
        "tracekit.errors:DivergenceError",
    ],
)
def test_only_exceptions_are_made(name: str) -> None:
    """A trace can't name what is no ordinary exception."""
    assert type(exception_from_json({"type": name, "text": "x", "args": ["x"]})) is RecordedError


class Order(pydantic.BaseModel):
    city: str
    days: Annotated[int, pydantic.Field(gt=0)]

    @pydantic.field_validator("city")
    @classmethod
    def known(cls, city: str) -> str:
        if city == "Atlantis":
            raise ValueError("not on the map")
        if city == "Avalon":
            raise PydanticCustomError("myth", "{city} is a {kind}", {"city": city, "kind": "myth"})
        return city


def _wrong(*sources: Any) -> pydantic.ValidationError:
    try:
        Order.model_validate_json(sources[0]) if type(sources[0]) is str else Order.model_validate(sources[0])
    except pydantic.ValidationError as error:
        return error
    raise AssertionError("valid")


@pytest.mark.parametrize(
    "source",
    [
        {"city": 3},
        '{"city": [], "days": 0}',
        "[1",
        {"city": "Atlantis", "days": 1},
        {"city": "Avalon", "days": "x"},
        "3",
        3,
    ],
    ids=shown,
)
def test_pydantics_validation_errors(source: Any) -> None:
    """What a tool's validation said is said again: by the same class, with the same text and the same list of errors."""
    error = _wrong(source)
    back = _back(error)
    assert type(back) is pydantic.ValidationError
    assert str(back) == str(error)
    assert repr(back.errors()) == repr(error.errors())


def test_a_validation_error_about_what_cant_be_recorded() -> None:
    """It is a ``RecordedError`` with its text, and that is said."""
    error = _wrong({"city": object(), "days": 1})
    tree = exception_to_json(error)
    back = exception_from_json(tree)
    assert (type(back), str(back)) == (RecordedError, str(error))
    ((code, said),) = shortfalls(tree, back)
    assert code == "exception"
    assert "pydantic_core._pydantic_core:ValidationError, which comes back as RecordedError" in said


def test_urllibs_errors() -> None:
    """An ``HTTPError`` has its code, headers and what could be read of its body; a ``URLError`` its reason."""
    headers = HTTPMessage()
    headers["Retry-After"], headers["Set-Cookie"] = "3", "session=secret"
    with (
        HTTPError("http://x/y", 429, "slow down", headers, io.BytesIO(b"later")) as error,
        _back(error) as back,
    ):
        assert (type(back), back.code, back.reason, back.url, str(back)) == (
            HTTPError, 429, "slow down", "http://x/y", "HTTP Error 429: slow down",
        )  # fmt: skip
        assert (back.headers.items(), back.read()) == ([("Retry-After", "3")], b"later")
    with HTTPError("http://x", 404, "nf", None, None) as error, _back(error) as back:  # type: ignore[arg-type]
        assert str(back) == "HTTP Error 404: nf"
    back = _back(URLError(ConnectionRefusedError(111, "refused")))
    assert (type(back), type(back.reason), back.reason.errno) == (URLError, ConnectionRefusedError, 111)


def test_a_body_that_was_left_unread_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    """Reading it in a replay says that it is not in the trace."""
    (tmp_path / "body").write_bytes(b"much")
    with (
        open(tmp_path / "body", "rb") as file,
        HTTPError("http://x", 500, "no", None, file) as error,  # type: ignore[arg-type]
        _back(error) as back,
    ):
        assert error.read() == b"much"
        with pytest.raises(NotReplayableError, match="not in the trace"):
            back.read()


def test_jsonschemas_errors() -> None:
    """With the path, the instance and the validator that they name."""
    validator = jsonschema.Draft202012Validator({"properties": {"a": {"type": "integer"}}})
    (error,) = validator.iter_errors({"a": "x"})
    for each in (error, jsonschema.ValidationError("bad", path=["a", 0])):
        back = _back(each)
        assert type(back) is jsonschema.ValidationError
        assert (str(back), list(back.path), back.validator) == (str(each), list(each.path), each.validator)


def test_decimals_errors() -> None:
    """With the conditions that they name, which are classes of ``decimal`` itself."""

    def raised(*operands: str | int) -> decimal.DecimalException:
        try:
            decimal.Decimal(operands[0]) / decimal.Decimal(operands[1])
        except decimal.DecimalException as error:
            return error
        raise AssertionError(operands)

    for each in (raised("x", 1), raised(1, 0), raised(0, 0), decimal.InvalidOperation("mine", 3)):
        back = _back(each)
        assert type(back) is type(each)
        assert (str(back), back.args) == (str(each), each.args)


def test_a_local_class_is_the_one_that_the_program_can_name_now() -> None:
    """A class that its function makes at each call is found by name; the last one made is taken."""
    first, second = _local(), _local()
    assert type(_back(first)) is type(_back(second)) is type(second)
    assert type(first) is not type(second)


def test_what_does_not_come_back_is_said() -> None:
    """Attributes that are not in the trace are named, in a group's members too."""
    error = ExceptionGroup("many", [ValueError(1), Custom(5, detail="d")])
    tree = exception_to_json(error)
    ((code, said),) = shortfalls(tree, exception_from_json(tree))
    assert code == "attributes"
    assert said.endswith("Custom, whose attributes are not in the trace: client")
    assert shortfalls(exception_to_json(ValueError(1)), ValueError(1)) == []


def test_an_attribute_that_is_a_class_is_said_not_to_be_in_the_trace() -> None:
    """A class is no value that a trace holds: a program that reads such an attribute is warned, not surprised."""
    error = Custom(5, detail="d")
    error.client, error.wanted = None, Custom  # type: ignore[assignment,attr-defined]
    tree = exception_to_json(error)
    ((code, said),) = shortfalls(tree, exception_from_json(tree))
    assert (code, said.rpartition(": ")[2]) == ("attributes", "wanted")
