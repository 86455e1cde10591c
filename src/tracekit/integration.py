"""For authors of integrations: how a library's calls become steps.

An integration is an importable package with an object ``integration`` of type :class:`Integration`, announced in the
entry-point group ``tracekit.integrations``. It describes patches; ``tracekit.instrument()`` applies them when (and only if) the
library is imported, and ``tracekit.uninstrument()`` restores what was there. It never imports its library itself.

Three kinds of integration, often in one object:

- a **transport seam** wraps the function through which an HTTP client sends a request, and tells :func:`begin` what goes out
  (see ``tracekit_httpx``);
- a **dialect** reads requests and answers of one wire protocol: which requests are model calls, of which model, with which
  usage (:class:`Dialect`; see ``tracekit_openai``);
- any other **capture point** describes what is about to happen as a :class:`Request` and begins a step::

      scope = here()
      if scope is None:
          return original(*args, **kwargs)
      step = scope.session.begin(scope, Request.of("tool", "mcp.search", arguments, side_effect="read_only"))
      if not step.live:
          outcome = step.answer()
          if outcome.error is not None:
              raise outcome.error
          return outcome.output
      token = current.set(step.body())
      try:
          result = original(*args, **kwargs)
      except BaseException as error:
          step.failed(error)
          raise
      finally:
          current.reset(token)
      step.done(result)
      return result
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ._capture.calls import drive as drive
    from ._capture.http import AMBIENT as AMBIENT
    from ._capture.http import Answer as Answer
    from ._capture.http import Exchange as Exchange
    from ._capture.http import Headers as Headers
    from ._capture.http import begin as begin
    from ._capture.http import elsewhere as elsewhere
    from ._capture.http import events as events
    from ._capture.http import message as message
    from ._capture.http import outside as outside
    from ._capture.http import refuse as refuse
    from ._capture.plugins import GROUP as GROUP
    from ._capture.plugins import Ambient as Ambient
    from ._capture.plugins import Claim as Claim
    from ._capture.plugins import Dialect as Dialect
    from ._capture.plugins import Endpoint as Endpoint
    from ._capture.plugins import Form as Form
    from ._capture.plugins import Integration as Integration
    from ._capture.plugins import Patch as Patch
    from ._capture.plugins import Reading as Reading
    from ._capture.plugins import TaskSource as TaskSource
    from ._capture.plugins import attach as attach
    from ._capture.plugins import detach as detach
    from ._capture.plugins import discover as discover
    from ._capture.plugins import register as register
    from ._capture.plugins import register_tasks as register_tasks
    from ._capture.plugins import shown as shown
    from ._journal.reader import Trace as Trace
    from ._journal.reader import Verdict as Verdict
    from ._journal.store import Store as Store
    from ._runtime.context import Scope as Scope
    from ._runtime.context import current as current
    from ._runtime.session import Outcome as Outcome
    from ._runtime.session import Session as Session
    from ._runtime.session import Step as Step
    from ._runtime.session import Timer as Timer
    from ._runtime.session import here as here
    from ._runtime.step import Request as Request
    from ._runtime.step import Spec as Spec
    from ._values import register as register_codec

#: Where each name lives; it is imported when it is first used, so that a transport does not load what only a harness needs.
_HOMES: Final = {
    "AMBIENT": "_capture.http",
    "Ambient": "_capture.plugins",
    "Answer": "_capture.http",
    "Claim": "_capture.plugins",
    "Dialect": "_capture.plugins",
    "Endpoint": "_capture.plugins",
    "Exchange": "_capture.http",
    "Form": "_capture.plugins",
    "GROUP": "_capture.plugins",
    "Headers": "_capture.http",
    "Integration": "_capture.plugins",
    "Outcome": "_runtime.session",
    "Patch": "_capture.plugins",
    "Reading": "_capture.plugins",
    "Request": "_runtime.step",
    "Scope": "_runtime.context",
    "Session": "_runtime.session",
    "Spec": "_runtime.step",
    "Step": "_runtime.session",
    "Store": "_journal.store",
    "TaskSource": "_capture.plugins",
    "Timer": "_runtime.session",
    "Trace": "_journal.reader",
    "Verdict": "_journal.reader",
    "attach": "_capture.plugins",
    "begin": "_capture.http",
    "current": "_runtime.context",
    "detach": "_capture.plugins",
    "discover": "_capture.plugins",
    "drive": "_capture.calls",
    "elsewhere": "_capture.http",
    "events": "_capture.http",
    "here": "_runtime.session",
    "message": "_capture.http",
    "outside": "_capture.http",
    "refuse": "_capture.http",
    "register": "_capture.plugins",
    "register_codec": "_values:register",
    "register_tasks": "_capture.plugins",
    "shown": "_capture.plugins",
}

__all__ = [
    "AMBIENT",
    "GROUP",
    "Ambient",
    "Answer",
    "Claim",
    "Dialect",
    "Endpoint",
    "Exchange",
    "Form",
    "Headers",
    "Integration",
    "Outcome",
    "Patch",
    "Reading",
    "Request",
    "Scope",
    "Session",
    "Spec",
    "Step",
    "Store",
    "TaskSource",
    "Timer",
    "Trace",
    "Verdict",
    "attach",
    "begin",
    "current",
    "detach",
    "discover",
    "drive",
    "elsewhere",
    "events",
    "here",
    "message",
    "outside",
    "refuse",
    "register",
    "register_codec",
    "register_tasks",
    "shown",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, _, other = home.partition(":")
    value = getattr(import_module(f".{module}", __package__), other or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
