"""Captures random numbers: the session answers every draw by the run's own code.

Caught at the source: ``Random.random`` and ``Random.getrandbits`` (where every method of every generator ends, seeded
or not), ``os.getrandom``, ``os.urandom`` (``uuid4``, ``secrets``, ``SystemRandom``, NumPy's fresh seeds; for packages only ``uuid4``),
and those functions of ``uuid``, ``uuid_utils``, ``fastuuid``, ``email.utils`` and ``Random.gauss`` whose draws depend
on the process or on earlier calls; these as a whole.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

from .. import _reality
from .._runtime.inputs import LeftStates
from .._runtime.session import Scope, Session, current, here, in_own_lane, outside_the_run
from .._sources import STDLIB
from .callers import importing, library, library_at, pass_through, reader, walk
from .in_place import (
    ONE,
    CodeExchange,
    FunctionExchange,
    MethodExchange,
    Unsupported,
    function_patch,
    genuine,
    marking,
    plain,
    works,
)
from .patch import AtRestore, AttributePatch, ReversiblePatch, Switch, loaded, when_imported
from .plugins import id_makers, request_id_makers

__all__ = ["align_numpy", "hooks", "numpy_state", "package_hooks", "restore_numpy_state", "watch_numpy"]

Hook = Callable[..., Any]
_scope: Final = current.get
#: Files whose functions draw for their caller.
_DRAW_FOR_OTHERS: Final = {
    FunctionExchange.__init__.__code__.co_filename,
    os.path.join(STDLIB, "random.py"),
    os.path.join(STDLIB, "secrets.py"),
}
#: The functions that make UUIDs of what they draw.
_MAKERS: Final = {"uuid4", "uuid6", "uuid7", "uuid8"}
#: Up to this size an integer is a JSON number for every reader; larger ones are recorded in hexadecimal (linear time,
#: no limit).
_SMALL_BITS: Final = 53


def _answer(scope: Scope, name: str, real: Callable[[], Any]) -> Any:
    if importing():  # a process that has imported the package already does not draw
        return real()
    return scope.session.random_read(in_own_lane(scope), name, real)


def _drawn_by(package: Any, scope: Scope, name: str, real: Callable[[], Any]) -> Any:
    """Answer a draw by user code (``True``), or by an installed package, for decisions (how long to wait before a
    retry) or names."""
    if package is True:
        return _answer(scope, name, real)
    return scope.session.library_draw(in_own_lane(scope), name, package, real)


def _random(method: Any) -> Hook:
    def random(self: Any) -> Any:
        scope = _scope()
        who = None if scope is None or scope.live else reader()
        if scope is None or who is None:
            return method(self)
        return _drawn_by(who, scope, "random.random", method.__get__(self))

    return random


def _getrandbits(method: Any) -> Hook:
    def getrandbits(self: Any, k: Any) -> Any:
        scope = _scope()
        who = None if scope is None or scope.live else reader()
        if scope is None or who is None:
            return method(self, k)
        if type(k) is int and k <= _SMALL_BITS:
            return _drawn_by(who, scope, "random.getrandbits", partial(method, self, k))
        return int(_drawn_by(who, scope, "random.getrandbits", lambda: hex(method(self, k))), 16)

    return getrandbits


def _urandom(real: Any, _flags: int) -> Hook:
    def urandom(_proxy: object, size: Any) -> Any:
        scope = _scope()
        if scope is None or scope.live:
            return real(size)
        who = reader()
        if who is True:
            return _answer(scope, "os.urandom", partial(real, size))
        maker = _maker_of_an_id(sys._getframe(1))
        who = None if maker is None or _is_for_a_request(maker.f_back) else who or library()
        if who is None:
            return real(size)
        name = "uuid.uuid4" if maker.f_globals.get("__name__") == "uuid" else "os.urandom"
        drawn = scope.session.library_draw(in_own_lane(scope), name, who, lambda: real(size).hex())
        return bytes.fromhex(drawn)

    return urandom


def _getrandom(real: Any, _flags: int) -> Hook:
    def getrandom(_proxy: object, *args: Any, **kwargs: Any) -> Any:
        scope = _scope()
        if scope is None or scope.live or reader() is not True:
            return real(*args, **kwargs)
        return _answer(scope, "os.getrandom", partial(real, *args, **kwargs))

    return getrandom


def _maker_of_an_id(frame: Any) -> Any:
    """Return the frame of ``uuid4``, or of another function of such a name (packages bring their own ``uuid7``), if
    ``frame`` is of what that calls, else ``None``: ids are not secret, and packages print, send and compare theirs."""
    while frame is not None and frame.f_code.co_filename in _DRAW_FOR_OTHERS:
        frame = frame.f_back
    return frame if frame is not None and frame.f_code.co_name in _MAKERS else None


def _is_for_a_request(maker: Any) -> bool:
    """Return whether an integration names the code that makes an id: nobody but the server sees it, if that."""
    return maker is not None and (maker.f_globals.get("__name__"), maker.f_code.co_qualname) in request_id_makers()


def _whole(name: str, freeze: Callable[[Any], Any] | None, thaw: Callable[[Any], Any] | None, real: Any) -> Hook:
    """Record a function as a whole, without what it reads and draws inside."""
    makes_ids = "uuid." in name or "uuid_utils." in name or name.rpartition(".")[2] in _MAKERS

    def call(_proxy: object, *args: Any, **kwargs: Any) -> Any:
        scope = _scope()
        who = None if scope is None or scope.live else reader()
        if who is None and makes_ids and scope is not None and not scope.live:
            who = library()  # telemetry: the program may print the id of its trace
        if scope is None or who is None or not (makes_ids or who is True):
            return real(*args, **kwargs)
        value = _drawn_by(who, scope, name, lambda: _alone(freeze, real, args, kwargs))
        return thaw(value) if thaw is not None else value

    return call


def _alone(freeze: Callable[[Any], Any] | None, real: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = outside_the_run(real, *args, **kwargs)
    return value if freeze is None else freeze(value)


# -- what to patch -----------------------------------------------------------------------------------------------------


@cache
def _core_patches() -> list[ReversiblePatch]:
    from _random import Random

    patches: list[ReversiblePatch] = [AtRestore("numpy.random.set_state", _aligned.restore)]
    for name, make, sample in (("random", _random, ()), ("getrandbits", _getrandbits, (8,))):
        patches += _method_patches(Random, name, make, sample)
    _reality.repoint("urandom", genuine(os.urandom))
    try:
        patches.append(function_patch(os, os.urandom, _urandom))
    except Unsupported as error:
        hooks.degraded.append(f"os.urandom: only the name in its module is replaced ({error})")
        patches.append(AttributePatch(os, "urandom", plain(_urandom(_reality.urandom, ONE), ONE)))
    if (function := getattr(os, "getrandom", None)) is not None:  # of Linux
        try:
            patches.append(function_patch(os, function, _getrandom))
        except Unsupported as error:
            hooks.degraded.append(f"os.getrandom: only the name in its module is replaced ({error})")
            patches.append(AttributePatch(os, "getrandom", plain(_getrandom(function, 0), 0)))
    return patches


def _method_patches(
    owner: type, name: str, make: Callable[[Any], Hook], sample: tuple[Any, ...]
) -> list[ReversiblePatch]:
    try:
        generator = owner(0)
        marker, earlier = object(), partial(getattr(generator, name), *sample)
        trial = MethodExchange(owner, name, lambda method: marking(marker, method))
        fault = works(trial, earlier, lambda: getattr(generator, name)(*sample), marker=marker)
        if fault is not None:
            raise Unsupported(fault)
        return [MethodExchange(owner, name, make)]
    except Unsupported as error:
        hooks.degraded.append(f"random.{name}: draws by bound methods taken earlier are not captured ({error})")
        return [AttributePatch(owner, name, make(vars(owner)[name]))]


def _random_patches() -> list[ReversiblePatch]:
    # It keeps a second value for the next call: the number of its draws depends on calls before the run.
    return _code_patch(sys.modules["random"].Random.gauss, "random.gauss", None, None)


def _uuid_patches() -> list[ReversiblePatch]:
    """Return the patches of ``uuid``'s functions that remember the last time stamp or the node; ``uuid4`` is 16 bytes
    of ``os.urandom``."""
    module: Any = sys.modules["uuid"]
    patches: list[ReversiblePatch] = []

    def thaw(value: Any) -> Any:
        return module.UUID(hex=value[0], is_safe=module.SafeUUID(value[1]))

    for name in ("uuid1", "uuid6", "uuid7"):
        if hasattr(module, name):
            patches += _code_patch(getattr(module, name), f"uuid.{name}", lambda it: [it.hex, it.is_safe.value], thaw)
    return patches + _code_patch(module.getnode, "uuid.getnode", None, None)


def _code_patch(function: Any, name: str, freeze: Any, thaw: Any) -> list[ReversiblePatch]:
    try:
        return [CodeExchange(function, partial(_whole, name, freeze, thaw))]
    except Unsupported as error:
        hooks.degraded.append(f"{name}: not captured ({error})")
        return []


def _package_patches() -> list[ReversiblePatch]:
    """Return the patches of functions like ``uuid7`` that packages bring, as their integrations name them. Such a
    function remembers the last time stamp, so what it draws depends on the calls before, in other runs too."""
    found: list[ReversiblePatch] = []
    for module, function in id_makers():
        owner = loaded(module)
        if hasattr(owner, function):
            make = partial(_package_patch, module, getattr(owner, function))
            found += package_hooks.made((module, function, id(owner)), make)
    return found


def _package_patch(module: str, function: Any) -> list[ReversiblePatch]:
    return _code_patch(function, f"{module}.{function.__name__}", lambda it: it.hex, _uuid_of)


def _uuid_of(text: str) -> Any:
    return sys.modules["uuid"].UUID(hex=text)


def _uuid_utils_patches() -> list[ReversiblePatch]:
    module: Any = sys.modules["uuid_utils._uuid_utils"]
    # Its ``compat`` module is Python on top of these.
    pass_through(os.path.dirname(module.__file__))
    patches: list[ReversiblePatch] = []
    for name in ("uuid1", "uuid4", "uuid6", "uuid7", "getnode", "_uuid4_int", "_uuid7_int"):
        function = getattr(module, name, None)
        if function is None:
            continue
        freeze: Any = hex if name.endswith("_int") else None if name == "getnode" else lambda it: it.hex
        thaw: Any = _from_hex if name.endswith("_int") else None if name == "getnode" else module.UUID
        patches += _builtin_patch(function, f"uuid_utils.{name.strip('_')}", freeze, thaw)
    return patches


def _fastuuid_patches() -> list[ReversiblePatch]:
    package: Any = sys.modules["fastuuid"]
    patches: list[ReversiblePatch] = []
    for name in (
        "uuid1", "uuid4", "uuid7", "uuid_v1mc", "uuid4_bulk", "uuid7_bulk", "uuid4_as_strings_bulk", "uuid7_as_strings_bulk",
    ):  # fmt: skip
        function = getattr(package, name, None)
        if function is None:
            continue
        freeze, thaw = _as_texts, partial(_as_uuids, package.UUID) if not name.endswith("strings_bulk") else None
        patches += _builtin_patch(function, f"fastuuid.{name}", freeze, thaw)
    return patches


def _as_texts(value: Any) -> Any:
    return [str(one) for one in value] if isinstance(value, list) else str(value)


def _as_uuids(make: Any, value: Any) -> Any:
    return [make(one) for one in value] if isinstance(value, list) else make(value)


def _builtin_patch(function: Any, name: str, freeze: Any, thaw: Any) -> list[ReversiblePatch]:
    try:
        return [FunctionExchange(function, _whole(name, freeze, thaw, genuine(function)))]
    except Unsupported as error:
        hooks.degraded.append(f"{name}: not captured ({error})")
        return []


def _mail_patches() -> list[ReversiblePatch]:
    """Hook message ids of mails, made from the time, a random number, the process id, and the name of the host, which
    is looked up."""
    from socket import getfqdn

    def make(real: Any) -> Hook:
        def make_msgid(_proxy: object, idstring: Any = None, domain: Any = None) -> Any:
            scope = _scope()
            who = None if scope is None or scope.live else reader()
            if scope is None or who is None:
                return real(idstring, domain)
            if who is True and domain is None:  # a replay makes an id, too, without a look-up
                at_home = partial(_alone, None, getfqdn, (), {})
                domain = scope.session.question(here() or scope, "socket.getfqdn", at_home, lambda _: None)
            return _drawn_by(who, scope, "email.utils.make_msgid", lambda: _alone(None, real, (idstring, domain), {}))

        return make_msgid

    function = sys.modules["email.utils"].make_msgid
    try:
        return [CodeExchange(function, make)]
    except Unsupported as error:
        hooks.degraded.append(f"email.utils.make_msgid: not captured ({error})")
        return []


#: Modules between the code that wants a temporary file and its name: ``open`` calls an opener.
_NAMING: Final = frozenset(("tempfile", "tracekit._capture.inputs"))


def _tempfile_patches() -> list[ReversiblePatch]:
    """Hook the random part of temporary file names. If a name is taken, the next one is drawn for real: that is not a
    draw of the program."""
    names: Any = getattr(sys.modules["tempfile"], "_RandomNameSequence", None)
    if names is None:
        return []
    original = names.__next__
    # Once per process, files with such names are used to find the directory: not a draw of the first caller.
    looks = getattr(getattr(sys.modules["tempfile"], "_get_default_tempdir", None), "__code__", None)

    def next_name(self: Any) -> str:
        scope = _scope()
        if scope is None or scope.live:
            return str(original(self))
        frame: Any = sys._getframe(1)
        if frame.f_code is looks or frame.f_locals.get("seq"):
            return str(original(self))
        while frame is not None and frame.f_globals.get("__name__") in _NAMING:
            frame = frame.f_back
        who = walk(frame) or library_at(frame)  # packages hand the paths of their files to processes
        if not who:
            return str(original(self))
        return str(_drawn_by(who, scope, "tempfile.name", lambda: _alone(None, original, (self,), {})))

    return [AttributePatch(names, "__next__", next_name)]


def _from_hex(value: str) -> int:
    return int(value, 16)


_LATER: Final[dict[str, Callable[[], list[ReversiblePatch]]]] = {
    "random": _random_patches,
    "uuid": _uuid_patches,
    "uuid_utils._uuid_utils": _uuid_utils_patches,
    "fastuuid": _fastuuid_patches,
    "email.utils": _mail_patches,
    "tempfile": _tempfile_patches,
}


hooks: Final = Switch(_core_patches, _LATER)
package_hooks: Final = Switch(_package_patches, lambda: [module for module, _ in id_makers()])


# -- NumPy's global generator ------------------------------------------------------------------------------------------

#: The name of the global generator's state in a trace.
NUMPY: Final = "numpy.random.state"


class _Aligned:
    """The state of the global generator before the first session that set another one; ``None`` if none did."""

    before: dict[str, Any] | None = None

    def restore(self) -> None:
        before, self.before = self.before, None
        restore_numpy_state(before)


_aligned: Final = _Aligned()


def numpy_state() -> dict[str, Any] | None:
    """Return the state of ``np.random``'s global generator as JSON values, or ``None`` if NumPy's is not loaded."""
    module: Any = sys.modules.get("numpy.random")
    if module is None or not hasattr(module, "get_state"):
        return None
    state = module.get_state(legacy=False)
    inner = {key: _flat(value) for key, value in state["state"].items()}
    gauss = float(state["gauss"]).hex()
    return {
        "bit_generator": state["bit_generator"],
        "state": inner,
        "has_gauss": int(state["has_gauss"]),
        "gauss": gauss,
    }


def _flat(value: Any) -> Any:
    if hasattr(value, "tobytes"):
        return {
            "dtype": value.dtype.newbyteorder("<").str,
            "hex": value.astype(value.dtype.newbyteorder("<")).tobytes().hex(),
        }
    return {"int": hex(value)}


def restore_numpy_state(tree: dict[str, Any] | None) -> None:
    """Set ``np.random``'s global generator to a state from ``numpy_state``; a state of another kind is ignored."""
    # Not ``numpy.random``: while that module is being imported it is not yet an attribute of its package, and a package
    # that loads it on access would begin again.
    numpy: Any = sys.modules.get("numpy")
    module: Any = sys.modules.get("numpy.random")
    if tree is None or numpy is None or not hasattr(module, "set_state"):
        return
    if module.get_state(legacy=False)["bit_generator"] != tree["bit_generator"]:
        return
    inner = {key: _unflat(numpy, value) for key, value in tree["state"].items()}
    module.set_state({**tree, "state": inner, "gauss": float.fromhex(tree["gauss"])})


def _unflat(numpy: Any, value: dict[str, str]) -> Any:
    if "int" in value:
        return int(value["int"], 16)
    return numpy.frombuffer(bytes.fromhex(value["hex"]), dtype=value["dtype"]).copy()


def align_numpy(session: Session) -> None:
    """Record the state of NumPy's global generator, or set the recorded one until the last session has ended.

    For the start of a run; if NumPy is imported during a run, this happens right after the import.
    """
    left = session.state.extras.of(_Left)
    session.state.extras.of(LeftStates).setters[NUMPY] = left.set
    watch_numpy(session)
    before = numpy_state()
    if before is None:
        return
    value = session.snapshot(NUMPY, before)
    value = value if left.tree is None else left.tree
    if value is not None and value != before:
        _aligned.before = _aligned.before or before
        restore_numpy_state(value)


class _Left:
    """The state in which the last recorded step left the global generator."""

    def __init__(self) -> None:
        self.tree: dict[str, Any] | None = None

    def set(self, tree: Any) -> None:
        """Set the generator to this state; if it is not loaded yet, later."""
        self.tree = tree
        before = numpy_state()
        if before is not None:
            _aligned.before = _aligned.before or before
            restore_numpy_state(tree)


def watch_numpy(session: Session) -> None:
    """Record the state of NumPy's global generator after steps that drew from it and whose body a replay does not run."""
    if session.recording and _watch not in session.state.at_begin and _mark() is not None:
        session.state.at_begin.append(_watch)


def _watch(scope: Scope, step: int, before: Any = None) -> None:
    endings = scope.session.state.before_outcome
    before = before or _mark()
    endings[step] = partial(_leave, scope, step, before, endings.get(step))
    seen = [before]

    def leave_so_far() -> None:
        mark = _mark()
        if mark != seen[0]:
            seen[0] = mark
            _leave(scope, step, None, None)

    scope.session.state.before_piece.setdefault(step, []).append(leave_so_far)


def _leave(scope: Scope, step: int, before: Any, others: Callable[[], object] | None) -> None:
    if others is not None:
        others()
    if _mark() != before:
        scope.session.input_read(scope.inside(step, live=True), "state", NUMPY, numpy_state(), own=False)


class _Words:
    """The state of the global generator in memory, and its owner."""

    generator: Any = None
    words: Any = None


_known: Final = _Words()


def _mark() -> tuple[int, int] | None:
    """Return something that changes whenever the global generator is drawn from or seeded: its position, and its first
    word."""
    try:
        generator: Any = sys.modules["numpy.random"].mtrand._rand._bit_generator
    except (KeyError, AttributeError):
        return None
    if generator is not _known.generator:
        _known.words = _words_at(generator.ctypes.state_address) if type(generator).__name__ == "MT19937" else None
        _known.generator = generator
    words = _known.words
    return None if words is None else (words[_WORDS], words[0])


#: The number of words in the state of the Mersenne Twister, followed by the number of the next one.
_WORDS: Final = 624


def _words_at(address: int) -> Any:
    import ctypes

    return (ctypes.c_uint32 * (_WORDS + 1)).from_address(address)


def _numpy_imported() -> None:
    scope = here() if hooks.active else None
    if scope is not None:  # also in the body of a tool: a replay does not run that, and the program imports it later
        align_numpy(scope.session)
        mark = _mark()
        if scope.live and scope.session.recording and mark is not None:
            _watch(scope, scope.live, mark)


when_imported("numpy.random", _numpy_imported)
