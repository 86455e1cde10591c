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

from ._capture.calls import drive
from ._capture.http import AMBIENT, Answer, Exchange, Headers, begin, elsewhere, events, message, outside, refuse
from ._capture.plugins import (
    GROUP,
    Ambient,
    Claim,
    Dialect,
    Endpoint,
    Integration,
    Patch,
    Reading,
    TaskSource,
    attach,
    detach,
    discover,
    register,
    register_tasks,
    shown,
)
from ._runtime.context import Scope, current
from ._runtime.session import Outcome, Session, Step, Timer, here
from ._runtime.step import Request, Spec
from ._values import register as register_codec

__all__ = [
    "AMBIENT",
    "GROUP",
    "Ambient",
    "Answer",
    "Claim",
    "Dialect",
    "Endpoint",
    "Exchange",
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
    "TaskSource",
    "Timer",
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
