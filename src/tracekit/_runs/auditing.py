"""A run as an auditor reads it: who acted, on which decision, what allowed it, and its outcome.

An account contains what the log says and how reliable that is: it points out what was only claimed, what was not
checked and what the log lacks, and takes nothing for an approval that does not say so. :func:`account_of` creates one
from a run that was read. *Findings* are what an auditor must look at first: damage, a seal that was requested and does
not hold, an effect that no policy allowed in a run that consulted a policy. *Gaps* are what the account can't say.

**Which check allows an effect.** A ``policy.check`` is about an effect if the action it was asked about is the tool
(``pay``, ``tool:pay``, ``payments.pay``, or what the auditor maps to it), its agent, if given, is the one that acts,
and the arguments it was given are those of the call. For each policy, the last check before the effect decides; if
several policies decided, a denial wins. A check that names no action, or names one in another vocabulary but has the
arguments of the call, counts for the next effect in its lane, if it allows. Nothing else allows anything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from .._journal.entry import meta_of
from .._journal.reader import Verdict
from .._runtime.boundary import uncaptured
from .reading import FileView, RunView, StepView, plain

__all__ = ["Account", "Action", "Basis", "Finding", "Identity", "PolicyCheck", "account_of"]

EFFECTS: Final = frozenset(("reversible", "irreversible"))
_DECISIONS: Final = frozenset(("decision", "router.decision"))
_REFUSALS: Final = frozenset(("contract.violated", "budget.exceeded"))
_REASONS: Final = ("reason", "reasons", "rationale", "reasoning", "why", "because", "explanation", "message")


class Identity(NamedTuple):
    """What the program said about an agent: claimed, whatever it says, since tracekit has checked none of it."""

    agent: str
    claims: Any
    place: int | str
    redacted: bool


Answer = Literal["allowed", "denied", "unclear"]


class PolicyCheck(NamedTuple):
    """A question to a policy, and its answer; ``unclear`` is an answer that neither allows nor denies, and allows
    nothing."""

    step: StepView
    answer: Answer
    reason: str | None
    action: str | None

    @property
    def place(self) -> int | str:
        return self.step.place


class Basis(NamedTuple):
    """What an action is based on: a decision in the log, or a model that requested the tool; ``how`` says how that was
    found."""

    place: int | str
    kind: Literal["decision", "model"]
    text: str
    how: str


class Finding(NamedTuple):
    """Something for the auditor to look at: its kind, a text, and the step concerned."""

    code: str
    text: str
    place: int | str | None = None


class Action(NamedTuple):
    """One step, with everything that belongs to it. ``policy`` is the check that decides about an effect,
    ``policy_how`` how it was found."""

    step: StepView
    effect: bool
    identity: Identity | None
    basis: Basis | None
    policy: PolicyCheck | None
    policy_how: str | None
    inside: int | str | None
    undone_by: tuple[StepView, ...]
    findings: tuple[Finding, ...]

    @property
    def state(self) -> str:
        """Its state: ``done``, ``failed``, ``refused``, ``in doubt``, ``compensated`` …"""
        if self.step.kind in _REFUSALS:
            return "refused"
        if any(one.state == "done" for one in self.undone_by):
            return "compensated"
        return self.step.state

    @property
    def key(self) -> str | None:
        """What makes it happen only once, as far as the log has it."""
        found = self.step.facts.get("idempotency_key", self.step.facts.get("once"))
        return None if found is None else str(plain(found))

    @property
    def entries(self) -> list[dict[str, Any]]:
        """Return its place: number and hash of the entry that began it, and of the one that ended it."""
        source = self.step.file.source
        seqs = [self.step.seq] + ([self.step.answer] if self.step.answer else [])
        return [{"place": self.step.file.place(seq), "hash": source.entry(seq).get("hash")} for seq in seqs]

    def as_dict(self) -> dict[str, Any]:
        step = self.step
        found: dict[str, Any] = {
            "place": step.place,
            "ts_ns": step.ts_ns,
            "kind": step.kind,
            "name": step.name,
            "agent": step.agent,
            "identity": None if self.identity is None else self.identity.place,
            "effect": self.effect,
            "side_effect": step.side_effect,
            "declared": step.facts.get("undeclared") is not True,
            "input": plain(step.input),
            "key": self.key,
            "basis": None if self.basis is None else self.basis._asdict(),
            "policy": None
            if self.policy is None
            else {
                "place": self.policy.place,
                "name": self.policy.step.name,
                "answer": self.policy.answer,
                "reason": self.policy.reason,
                "how": self.policy_how,
            },
            "contract": step.meta.get("contract"),
            "inside": self.inside,
            "state": self.state,
            "attempt": step.attempt,
            "output": plain(step.output),
            "error": step.error,
            "settled": step.settled,
            "answered_by": step.facts.get("duplicate_of"),
            "undoes": step.facts.get("compensates"),
            "undone_by": [one.place for one in self.undone_by],
            "cause": step.entry.get("cause"),
            "entries": self.entries,
            "findings": [one._asdict() for one in self.findings],
        }
        return found


class Account:
    """The account of one run: ``actions`` in the order in which they began, ``findings``, ``gaps``, and the basis of
    all that."""

    def __init__(self, view: RunView, found: Verdict, actions: Mapping[str, str]) -> None:
        self.view: Final = view
        self.found: Final = found
        self._actions: Final = actions
        self._identities: Final = [*_identities(view.files)]

    @property
    def identities(self) -> Sequence[Identity]:
        """The agents that are said to have acted, in the order in the log."""
        return self._identities

    @cached_property
    def checks(self) -> Sequence[PolicyCheck]:
        """Every question to a policy, with its answer."""
        return [_read_check(step, self._actions) for step in self.view.steps(kinds=("policy.check",))]

    @cached_property
    def budget(self) -> Mapping[str, Any] | None:
        """The budget that the run was given, or ``None``."""
        limits = meta_of(self.view.own.first).get("budget")
        return limits if isinstance(limits, Mapping) else None

    @cached_property
    def actions(self) -> Sequence[Action]:
        """Every step that is not bookkeeping, and each version of data that was used."""
        steps = [one for one in self.view.steps(all=True) if not one.bookkeeping or one.kind == "data"]
        effects = {one for one in steps if _is_effect(one)}
        policies = _Policies(self.checks, [one.name for one in steps if one.kind in ("tool", "process", "http")])
        bases = _Bases(steps)
        undoing: dict[int | str, list[StepView]] = {}
        for one in steps:
            if type(about := one.facts.get("compensates")) is int:
                undoing.setdefault(one.file.place(about), []).append(one)
        made = []
        for one in steps:
            effect = one in effects
            outer = _outer(one, effects) if effect else None
            check, how = (None, None)
            found: list[Finding] = []
            if effect:
                check, how = policies.of(outer or one)
                if self.checks and outer is None and "compensates" not in one.facts:
                    found += _judged(one, check)
            made.append(
                Action(
                    one, effect, self._identity(one), bases.of(one), check, how, None if outer is None else outer.place,
                    tuple(undoing.get(one.place, ())), tuple(found),
                )
            )  # fmt: skip
        return made

    def _identity(self, step: StepView) -> Identity | None:
        """Return what was last said about the agent before the step; in a child process also what the run itself had
        said."""
        if step.agent is None:
            return None
        own = [one for one in self._identities if one.agent == step.agent and _within(one.place, step)]
        above = [one for one in self._identities if one.agent == step.agent and isinstance(one.place, int)]
        return own[-1] if own else above[-1] if above and step.file.segment is not None else None

    @cached_property
    def findings(self) -> Sequence[Finding]:
        """What must be looked at first. Without findings, everything was checked and nothing found."""
        found = self.found
        made = []
        if found.state == "broken":
            where = f"line {found.line}: " if found.line else ""
            text = f"the trace is damaged: {where}{found.problem}; nothing from there on is in this account"
            made.append(Finding("damage", text))
        elif found.seal is not None and found.seal["state"] not in ("valid", "unchecked"):
            made.append(Finding("seal", f"not sealed as it is: {found.seal['text']}"))
        made += [one for action in self.actions for one in action.findings]
        if self.checks:
            made += [
                Finding("unrecorded", f"{text}, and no recorded policy check can be about it")
                for text in _unrecorded(self.view)
            ]
        return made

    @cached_property
    def gaps(self) -> Sequence[str]:
        """What the account can't say."""
        return [*_gaps(self)]

    def as_dict(self) -> dict[str, Any]:
        view, found = self.view, self.found
        return {
            "run_id": view.run_id,
            "name": view.name,
            "path": view.path,
            "state": view.state,
            "started_ns": view.started_ns,
            "took_ns": view.took,
            "program": _environment(view),
            "integrity": found._asdict(),
            "identities": [
                {
                    "agent": one.agent,
                    "place": one.place,
                    "claims": one.claims,
                    "verified": False,
                    "redacted": one.redacted,
                }
                for one in self.identities
            ],
            "policy": {"checks": len(self.checks), **Counter(one.answer for one in self.checks)},
            "budget": self.budget,
            "findings": [one._asdict() for one in self.findings],
            "gaps": [*self.gaps],
        }


def account_of(view: RunView, found: Verdict | None = None, *, actions: Mapping[str, str] | None = None) -> Account:
    """Create the account of a run; ``found`` is the result of verifying it with the auditor's own keys.

    ``actions`` maps the names of policies' actions to tools, where they differ.
    """
    return Account(view, view.found if found is None else found, actions or {})


def _environment(view: RunView) -> Mapping[str, Any]:
    found = meta_of(view.own.first).get("environment")
    return found if isinstance(found, Mapping) else {}


def _within(place: int | str, step: StepView) -> bool:
    segment, _, number = str(place).rpartition(":")
    return segment == (step.file.segment or "") and int(number) < step.seq


def _identities(files: Iterable[FileView]) -> Iterator[Identity]:
    for file in files:
        for entry in file.entries_of("identity"):
            claims = plain(file.source.expand(entry.get("input"), before=entry["seq"]))
            redacted = bool(meta_of(entry).get("redacted")) or "REDACTED" in str(claims)
            yield Identity(str(entry.get("name")), claims, file.place(entry["seq"]), redacted)


def _is_effect(step: StepView) -> bool:
    """Return whether the step has, or may have, had an effect: a call that was made, and changes something outside."""
    return (
        step.calls
        and step.kind not in ("span", "llm")
        and step.side_effect in EFFECTS
        and "duplicate_of" not in step.facts
    )


def _around(step: StepView) -> Iterator[StepView]:
    """Yield the steps that it was made in, the innermost first."""
    seen = step.parent
    while (above := step.file.steps.get(seen)) is not None and above.seq < step.seq:
        yield above
        seen = above.parent
        if seen >= above.seq:
            return


def _outer(step: StepView, effects: Set[StepView]) -> StepView | None:
    """Return the effect that it is a part of: the outermost one around it."""
    found = [one for one in _around(step) if one in effects]
    return found[-1] if found else None


# -- policies ----------------------------------------------------------------------------------------------------------

_ANSWER_KEYS: Final = (
    "decision", "allowed", "allow", "permitted", "permit", "approved", "granted", "verdict", "result", "outcome", "answer", "status",
)  # fmt: skip
_YES: Final = frozenset(
    ("allow", "allowed", "permit", "permitted", "approve", "approved", "grant", "granted", "accept", "accepted", "pass", "passed",
     "ok", "yes", "true")
)  # fmt: skip
_NO: Final = frozenset(
    ("deny", "denied", "forbid", "forbidden", "block", "blocked", "reject", "rejected", "refuse", "refused", "disallow", "disallowed",
     "fail", "failed", "no", "false")
)  # fmt: skip
_NAMED_IN: Final = ("action", "tool", "tool_name", "operation", "function")
_ARGUMENTS_IN: Final = ("payload", "arguments", "args", "parameters", "params", "input")


def _read_check(step: StepView, actions: Mapping[str, str]) -> PolicyCheck:
    asked, answer = plain(step.input), plain(step.output)
    reason = None
    if isinstance(answer, Mapping):
        reason = next((str(answer[key]) for key in _REASONS if answer.get(key)), None)
    action = _action(asked)
    return PolicyCheck(step, _answer(answer), reason, action if action is None else actions.get(action, action))


def _answer(answer: Any, depth: int = 0) -> Answer:
    if isinstance(answer, bool):
        return "allowed" if answer else "denied"
    if isinstance(answer, str):
        word = answer.rpartition(".")[2].strip().lower()  # may be an enumeration's member
        return "allowed" if word in _YES else "denied" if word in _NO else "unclear"
    if isinstance(answer, Mapping) and depth < 3:
        found = [_answer(answer[key], depth + 1) for key in _ANSWER_KEYS if key in answer]
        if found and len({*found}) == 1:  # an answer that contradicts itself allows nothing
            return found[0]
    return "unclear"


def _action(asked: Any) -> str | None:
    if isinstance(asked, str):
        return asked
    if not isinstance(asked, Mapping):
        return None
    for key in _NAMED_IN:
        found = asked.get(key)
        if isinstance(found, Mapping):
            found = found.get("name")
        if isinstance(found, str) and found:
            return found
    return None


def _names(action: str | None, tool: str) -> bool:
    """Return whether an action is the call of a tool: ``pay``, ``tool:pay``, ``payments.pay``, ``payments/pay``."""
    if action is None:
        return False
    if action == tool or " " in tool:  # a request: "POST https://…"
        return action == tool
    # Where both are qualified, the qualifiers must agree: users.delete is not orders.delete.
    ours, theirs = re.split(r"[.:/]", tool), re.split(r"[.:/]", action)
    common = min(len(ours), len(theirs))
    return ours[-common:] == theirs[-common:]


class _Policies:
    """Finds the check that decides about an effect."""

    def __init__(self, checks: Sequence[PolicyCheck], tools: Iterable[str]) -> None:
        self._checks: Final = checks
        self._tools: Final = {*tools}

    def of(self, step: StepView) -> tuple[PolicyCheck | None, str | None]:
        before = [one for one in self._checks if self._precedes(one.step, step)]
        latest: dict[str, PolicyCheck] = {one.step.name: one for one in before if self._is_about(one, step)}
        if latest:  # what one policy denies, no other one allows
            worst = min((one.answer for one in latest.values()), key=("denied", "unclear", "allowed").index)
            found = max((one for one in latest.values() if one.answer == worst), key=lambda one: one.step.ts_ns)
            asked = plain(found.step.input)
            agent = asked.get("agent_id", asked.get("agent")) if isinstance(asked, Mapping) else None
            known = not isinstance(agent, str) or step.agent is not None
            return found, "it names the action" + ("" if known else f", for {agent}; the call names no agent")
        if before and (near := before[-1]).answer == "allowed" and self._is_next(near, step):
            if near.action is None:
                return near, "it precedes the action, and names none"
            if self._has_its_arguments(near, step):
                return near, f"it precedes the action, and {near.action} has its arguments"
        return None, None

    def _precedes(self, check: StepView, step: StepView) -> bool:
        if check.file is step.file:
            return check.seq < step.seq
        causes = step.file.first.get("cause")
        cause = causes[0] if isinstance(causes, list) and causes else None
        begun = cause.get("seq") if isinstance(cause, Mapping) and cause.get("segment") is None else None
        # What the run itself asked before it started the process; what it asked later may have been too late.
        return check.file.segment is None and type(begun) is int and check.seq <= begun

    def _is_about(self, check: PolicyCheck, step: StepView) -> bool:
        if not (_names(check.action, step.name) or check.step.name == step.name):
            return False
        asked = plain(check.step.input)
        if not isinstance(asked, Mapping):
            return True
        agent = asked.get("agent_id", asked.get("agent"))
        if isinstance(agent, str) and step.agent is not None and agent != step.agent:
            return False
        checked, about = plain(step.input), _payload(asked)
        return not isinstance(checked, Mapping) or all(
            checked[key] == value for key, value in about.items() if key in checked
        )

    def _has_its_arguments(self, check: PolicyCheck, step: StepView) -> bool:
        arguments, about = plain(step.input), _payload(plain(check.step.input))
        return (
            bool(about)
            and isinstance(arguments, Mapping)
            and all(key in arguments and arguments[key] == about[key] for key in about)
        )

    def _is_next(self, check: PolicyCheck, step: StepView) -> bool:
        one = check.step
        if one.file is not step.file or one.lane_number != step.lane_number or one.agent != step.agent:
            return False
        if any(_names(check.action, tool) or one.name == tool for tool in self._tools):
            return False
        between = (found for found in one.file.steps.values() if one.seq < found.seq < step.seq)
        return not any(_is_effect(found) and found.lane_number == step.lane_number for found in between)


def _payload(asked: Any) -> Mapping[str, Any]:
    """Return the arguments that a policy was asked about."""
    if not isinstance(asked, Mapping):
        return {}
    return next((asked[key] for key in _ARGUMENTS_IN if isinstance(asked.get(key), Mapping)), {})


def _judged(step: StepView, check: PolicyCheck | None) -> Iterator[Finding]:
    what = f"{step.kind} {step.name} ({step.side_effect})"
    if check is None:
        yield Finding("no-policy", f"{what} was made, and no recorded policy check allows it", step.place)
    elif check.answer == "denied":
        yield Finding(
            "against-policy", f"{what} was made, and the policy check {check.place} had denied it", step.place
        )
    elif check.answer == "unclear":
        text = f"{what} was made, and the answer of the policy check {check.place} is not one that allows or denies"
        yield Finding("unclear-policy", text, step.place)


# -- decisions ---------------------------------------------------------------------------------------------------------


class _Bases:
    """Finds the decision or the model's answer that an action is based on."""

    def __init__(self, steps: Sequence[StepView]) -> None:
        self._decisions: Final = [one for one in steps if one.kind in _DECISIONS]
        self._asked: Final = [
            (one, request) for one in steps if (call := one.call) is not None for request in call.requested
        ]

    def of(self, step: StepView) -> Basis | None:
        if step.kind not in ("tool", "process", "http", *_REFUSALS):
            return None
        for above in _around(step):
            if above.kind in _DECISIONS:
                return Basis(above.place, "decision", _why(above), "it was made for that decision")
        found = [*self._named(step), *self._requested(step)]
        return max(found, key=lambda one: one[0])[1] if found else None

    def _named(self, step: StepView) -> Iterator[tuple[int, Basis]]:
        for one in reversed(self._decisions):
            if one.file is not step.file or one.seq > step.seq or (one.agent or step.agent) != step.agent:
                continue
            decided = plain(one.output)
            action = decided if isinstance(decided, str) else _action(decided)
            if _names(action, step.name) or one.name == step.name:
                yield (
                    one.seq,
                    Basis(one.place, "decision", _why(one), "it is the last one before that names the action"),
                )
                return

    def _requested(self, step: StepView) -> Iterator[tuple[int, Basis]]:
        arguments = plain(step.input)
        alike: StepView | None = None
        for one, request in reversed(self._asked):
            if one.file is not step.file or one.seq > step.seq or not _names(request.name, step.name):
                continue
            if request.arguments == arguments:
                text = _text_of_answer(one) or f"asked for {request.name}"
                yield one.seq, Basis(one.place, "model", text, "it requested exactly this call")
                return
            alike = alike or one
        if alike is not None:
            yield (
                alike.seq,
                Basis(
                    alike.place,
                    "model",
                    _text_of_answer(alike) or f"asked for {step.name}",
                    "it requested this tool with other arguments",
                ),
            )


def _why(step: StepView) -> str:
    """Return the reason of a decision, if it gives one; else what was decided."""
    decided = plain(step.output)
    for one in (decided, step.meta, plain(step.input)):
        if isinstance(one, Mapping):
            for key in _REASONS:
                if one.get(key):
                    return str(one[key])
    return decided if isinstance(decided, str) else f"decided {decided}"


def _text_of_answer(step: StepView) -> str | None:
    call = step.call
    return None if call is None else call.answer.text or None


# -- gaps --------------------------------------------------------------------------------------------------------------


def _gaps(account: Account) -> Iterator[str]:
    view, found = account.view, account.found
    if found.state == "incomplete":
        yield f"what came after the last entry: {found.problem}"
    if view.branched_from is not None:
        yield f"what was done: this is a {view.branched_from}; every other step was answered from that run and not executed"
    for action in account.actions:
        if (step := action.step).state == "in doubt":
            yield f"whether {step.kind} {step.name} was done: it is in doubt [{step.place}]"
    if found.lost:
        yield f"{found.lost} entries could not be written when it was recorded"
    if found.seal is None:
        yield "no seal was checked: anyone who could write the file could have made all of it (tracekit verify --key)"
    elif found.seal["state"] == "unchecked":
        yield f"the seal was not checked: {found.seal['text']}"
    if account.identities:
        yield "who acted is as the program stated; no identity or attestation was checked"
    unnamed = sum(action.effect and action.step.agent is None for action in account.actions)
    if unnamed:
        yield "1 effect names no agent" if unnamed == 1 else f"{unnamed} effects name no agent"
    if not account.checks and any(action.effect for action in account.actions):
        yield "the run recorded no policy check"
    if any(action.step.settled is not None for action in account.actions):
        yield "what an operator stated about a step after the run had ended is kept outside the trace; neither chain nor seal covers it"
    if not account.checks:  # otherwise they are findings
        yield from _unrecorded(view)


def _unrecorded(view: RunView) -> Iterator[str]:
    """Yield what crossed the boundary of the process uncaptured, and may have had an effect."""
    for file in view.files:
        for one in uncaptured(file.crossings.values()):
            if one.effect and one.status == "noted":
                yield f"not recorded, and it may have had an effect: {one.text}"
