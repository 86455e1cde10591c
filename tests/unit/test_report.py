"""``tracekit report``: runs as one HTML file that holds every step, reaches for nothing, and runs no text that was recorded."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.reported import HOSTILE, ask, hostile, look_up, shop
from tracekit import Report, record, replay, traced_model, traced_tool
from tracekit.cli import main
from tracekit.integration import read_run


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


class Parsed(HTMLParser):
    """A page as a browser reads it: its elements with their attributes, and the texts of its scripts and of all that is shown."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": [], "": []}
        self._in = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._in = tag
            self.inside[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._in:
            self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in:
            self.inside[self._in][-1] += data
        else:
            self.inside[""].append(data)

    @property
    def shown(self) -> str:
        return "".join(self.inside[""])

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.inside["script"][0])
        return found

    @property
    def policy(self) -> str:
        return next(str(about["content"]) for tag, about in self.elements if about.get("http-equiv"))


def page_of(*runs: str, **options: bool) -> Parsed:
    flags = [f"--{name.replace('_', '-')}" for name, on in options.items() if on]
    done = call("report", *runs, "-o", "-", *flags)
    assert done.exit_code == 0, done.stderr
    return Parsed(done.stdout)


def text_at(data: dict[str, Any], reference: Any) -> str:
    """The text that a value stands for."""
    if isinstance(reference, str) and reference[:1] == "\x01":
        reference = int(reference[1:])
    found = data["texts"][reference] if isinstance(reference, int) else reference
    return str(found[0] if isinstance(found, list) else found)


def steps_of(parsed: Parsed, kind: str, run: int = 0) -> list[dict[str, Any]]:
    return [step for step in parsed.data["runs"][run]["steps"] if step["kind"] == kind]


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def _is_inert(parsed: Parsed) -> None:
    """One block of data, one script and one style, which the policy names and nothing else; no address, no handler of an event."""
    assert [about for tag, about in parsed.elements if tag == "script"] == [
        {"type": "application/json", "id": "data"},
        {},
    ]
    (style,) = parsed.inside["style"]
    rules = dict(rule.strip().partition(" ")[::2] for rule in parsed.policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["script-src"] == _hash(parsed.inside["script"][1])
    assert rules["style-src"] == _hash(style)
    names = {name for _, about in parsed.elements for name in about}
    assert names <= {
        "charset", "class", "content", "data-step", "http-equiv", "id", "lang", "name", "open", "type"
    }  # fmt: skip
    assert {tag for tag, _ in parsed.elements} <= {
        "a", "b", "body", "code", "details", "div", "footer", "h1", "head", "header", "html", "li", "main", "meta", "noscript", "p",
        "script",
        "section", "span", "style", "summary", "table", "td", "title", "tr", "ul",
    }  # fmt: skip


def test_a_page_has_every_step_and_needs_nothing_but_itself(tmp_path: Path) -> None:
    """Steps of all lanes with what was asked, what came and how long it took; the head is read without a script."""
    run = shop(tmp_path)
    parsed = page_of(run.path)
    _is_inert(parsed)
    data = parsed.data
    with read_run(run.path) as view:
        places = {step.place for step in view.steps()}
        assert places <= {step["at"] for step in data["runs"][0]["steps"]}
    for text in (
        "shop",
        "complete",
        "7 model calls",
        "4 tool calls",
        "Can it be replayed?",
        "Is it safe to run again?",
        run.id,
    ):
        assert text in parsed.shown
    assert len(data["runs"][0]["lanes"]) == 3
    found, other = (step for step in steps_of(parsed, "tool") if step["name"] == "look_up")
    assert (found["agent"], found["input"], found["asked"]) == ("biller", {"order": "A-1042"}, "(order=A-1042)")
    assert other["lane"] == 1
    assert data["runs"][0]["steps"][found["in"]]["name"] == "billing"
    (failed,) = (step for step in steps_of(parsed, "tool") if "error" in step)
    assert (failed["error"], failed["class"], failed["state"]) == (
        "ValueError: -1 is no amount",
        "irreversible",
        "failed",
    )
    (stream,) = (step for step in steps_of(parsed, "llm") if "stream" in step)
    assert (stream["stream"]["count"], text_at(data, stream["call"]["text"])) == (3, "Dear customer, it is on its way.")


def test_numbers_stay_what_they_were(tmp_path: Path) -> None:
    """A number that JavaScript could not hold exactly is in the page of the report with all its digits."""

    @traced_tool(side_effect="read_only")
    def numbers() -> list[Any]:
        return [1, 1.0, 1.5, 2**53, -(2**70), True, None]

    with record("numbers", store=tmp_path) as run:
        numbers()
    (step,) = steps_of(page_of(run.path), "tool")
    assert step["output"] == [1, "\x021.0", 1.5, f"\x02{2**53}", f"\x02{-(2**70)}", True, None]


def test_no_recorded_text_is_markup_or_script(tmp_path: Path) -> None:
    """Whatever texts a run has as names, arguments, keys, results, errors, agents or messages: the page has the same elements as ever."""
    run = hostile(tmp_path)
    parsed = page_of(run.path)
    _is_inert(parsed)
    source = parsed.inside["script"][0]
    assert not set("<>&\u2028\u2029\x9b") & set(source)
    data = parsed.data
    texts = {text_at(data, number) for number in range(len(data["texts"]))}
    inputs = [text_at(data, step["input"]) for step in steps_of(parsed, "decision")]
    assert [text for text in inputs if text[-6:] != " alone"] == [text for text in HOSTILE if text[-6:] != " alone"]
    assert {text * 50 for text in HOSTILE if text != HOSTILE[8]} - texts == {
        HOSTILE[n] * 50 for n in range(2, len(HOSTILE), 3)
    } - {HOSTILE[8] * 50}  # those of the tools that failed
    assert HOSTILE[0] in html.unescape(parsed.shown)
    notebook = Parsed(str(run._repr_html_()))
    assert {tag for tag, _ in notebook.elements} <= {
        "b", "br", "code", "details", "div", "span", "summary", "table", "tbody", "td", "th", "thead", "tr"
    }  # fmt: skip


def test_a_prompt_is_put_as_what_a_turn_has_changed(tmp_path: Path) -> None:
    """From these edits every prompt comes back whole, the changed and dropped messages too, and no text is there twice."""
    run = shop(tmp_path, turns=9)
    parsed = page_of(run.path)
    data = parsed.data
    steps = data["runs"][0]["steps"]

    def prompt(number: int | None) -> list[int]:
        if number is None:
            return []
        about = steps[number]["call"]
        old, made, at = prompt(about.get("previous")), [], 0
        for sign, *of in about["edits"]:
            if sign in "=-":
                made += old[at : at + of[0]] if sign == "=" else []
                at += of[0]
            else:
                made += of
                at += len(of) if sign == "~" else 0
        return made

    signs = {sign for step in steps_of(parsed, "llm") for sign, *_ in step["call"]["edits"]}
    assert signs == {"=", "+", "-", "~"}
    with read_run(run.path) as view:
        asked = {
            step.place: [(one.role, one.text) for one in step.call.prompt.messages]
            for step in view.steps(kinds=("llm",))
            if step.call is not None
        }
    for number, step in enumerate(steps):
        if step["kind"] == "llm":
            messages = [data["messages"][one] for one in prompt(number)]
            assert [(one["role"], text_at(data, one["text"])) for one in messages] == asked[step["at"]]
    assert len(data["texts"]) == len({json.dumps(one) for one in data["texts"]})
    changed = next(of for step in steps_of(parsed, "llm") for sign, *of in step["call"]["edits"] if sign == "~")
    (key,) = (key for key, units in data["diffs"].items() if units == ["line", ["=", 1], ["-", 1], ["+", 1], ["=", 1]])
    assert int(key.split(":")[1]) == data["messages"][changed[0]]["text"]


def test_a_long_text_is_cut_and_says_so(tmp_path: Path) -> None:
    """Its beginning is put, with its length; --whole puts all of it."""

    @traced_tool(side_effect="read_only")
    def read() -> str:
        return "word " * 60_000

    with record("long", store=tmp_path) as run:
        read()
    assert page_of(run.path).data["texts"].count(["word " * 20_000, 300_000]) == 1
    assert "word " * 60_000 in page_of(run.path, whole=True).data["texts"]


def test_secrets_stay_placeholders(tmp_path: Path) -> None:
    """The HTML report shows a redacted value as its placeholder: the secret is not in the trace, so it cannot be in the page."""
    key = "sk-proj-" + "a1B2c3D4" * 5
    with record("secret", store=tmp_path) as run:
        look_up(key)
        ask([{"role": "user", "content": f"my key is {key}"}])
    done = call("report", run.path, "-o", "-")
    assert key not in done.stdout
    assert "REDACTED" in done.stdout.upper()


def test_two_runs_are_compared(tmp_path: Path) -> None:
    """What differs is put beside both: messages as edits, values by field; --no-diff leaves it out."""
    one, two = shop(tmp_path), shop(tmp_path, cents=80, turns=5)
    parsed = page_of(one.path, two.path)
    _is_inert(parsed)
    found = parsed.data["comparison"]
    assert [step["op"] for step in found["steps"]] == ["changed", "added", "changed"]
    assert found["steps"][2]["fields"] == [{"path": "input.cents", "recorded": 7980, "actual": 80}]
    assert [sign for sign, *_ in found["steps"][0]["edits"]] == ["=", "+", "="]
    for step in found["steps"]:
        for side, run in (("before", 0), ("now", 1)):
            if side in step:
                assert parsed.data["runs"][run]["steps"][step[side]]["kind"] in ("llm", "tool")
    assert page_of(one.path, two.path, no_diff=True).data["comparison"] is None


def test_a_partial_replay_is_compared_with_its_origin(tmp_path: Path) -> None:
    """What went live, and what followed from it, without that anybody names the recorded run."""
    said = ["before"]

    @traced_model(model="m")
    def answer(prompt: str) -> str:
        return said[0]

    def agent() -> None:
        look_up(answer("where?"))

    with record("agent", store=tmp_path) as run:
        agent()
    said[0] = "now"
    with replay(run.path, live={"llm", "tool"}, store=tmp_path, on_divergence="warn"):
        agent()
    (new,) = (path for path in (tmp_path / "runs").glob("*.jsonl") if str(path) != run.path)
    data = page_of(new.stem, f"--store={tmp_path}").data
    assert [one["id"] for one in data["runs"]] == [run.id, new.stem]
    assert {field["path"] for step in data["comparison"]["steps"] for field in step["fields"]} >= {
        "answer.text",
        "input.order",
    }


def test_the_file_that_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named after the run, for its owner alone; a report is replaced, anything else is not; what a trace calls itself is no path."""
    run = shop(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    done = call("report", run.path)
    written = tmp_path / f"{run.id}.html"
    assert (done.exit_code, done.stdout.strip(), os.stat(written).st_mode & 0o777) == (0, written.name, 0o600)
    assert call("report", run.path).exit_code == 0
    (tmp_path / "notes.html").write_text("<p>mine")
    done = call("report", run.path, "-o", "notes.html")
    assert (done.exit_code, (tmp_path / "notes.html").read_text()) == (2, "<p>mine")
    assert "not a report of tracekit" in done.stderr
    assert call("report", "nothing-like-it").exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["store", written.name, "notes.html"])


def test_a_damaged_or_unfinished_run_is_said_to_be_one(tmp_path: Path) -> None:
    """What verifies is shown; the head says that there is more, or that it was changed, and of the latter the command says
    so, too, with the exit code of damage."""
    run = shop(tmp_path / "store")
    lines = Path(run.path).read_bytes().splitlines(keepends=True)
    cut, broken = tmp_path / "cut.jsonl", tmp_path / "broken.jsonl"
    cut.write_bytes(b"".join(lines[:16]))
    broken.write_bytes(b"".join([*lines[:9], lines[9].replace(b'"seq":10', b'"seq":11'), *lines[10:]]))
    parsed = page_of(str(cut))
    assert "died" in parsed.shown
    assert "incomplete:" in parsed.shown
    done = call("report", str(broken), "-o", "-")
    assert (done.exit_code, "broken:" in Parsed(done.stdout).shown) == (1, True)
    assert f"{broken} is damaged, and the page has only what verifies" in done.stderr


def test_runs_and_reports_in_a_notebook(tmp_path: Path) -> None:
    """A run shows its steps without a script, also while it is recorded; a report of a replay its verdict and what it rests on."""
    with record("open", store=tmp_path) as run:
        look_up("A-1")
        while_open = run._repr_html_()
    assert while_open is not None
    assert "running" in while_open
    closed = Parsed(str(run._repr_html_()))
    assert "look_up(order=A-1) → {order: A-1" in closed.shown.replace("look_up (", "look_up(")
    with replay(run.path) as replayed:
        look_up("A-1")
    assert "exact" in Parsed(replayed.report._repr_html_()).shown
    report = Report("r-<1>")
    report.inexact("result", "<b>bold</b> & another")
    parsed = Parsed(report._repr_html_())
    assert "<b>bold</b> & another" in parsed.shown
    assert "r-<1>" in parsed.shown
    os.remove(run.path)
    assert run._repr_html_() is None
