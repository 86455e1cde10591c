"""A program with a secret of its own in every place where one can stand: none is in the store, and with the vault its replay is exact."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import string
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.place import Place
from tests.support.processes import SDKS

PROGRAM = r"""
import base64, json, os, subprocess, sys, traceback, urllib.request, warnings
from dataclasses import dataclass
import httpx, requests
from tracekit import decision, record, state_transition, traced_tool

warnings.simplefilter("ignore")
with open(os.environ["PLANTED"]) as file:
    S = json.load(file)
BASE = os.environ["SERVER"]

@dataclass
class Account:
    user: str
    password: str

@traced_tool(side_effect="read_only")
def tool(value, **more):
    return value

@traced_tool(side_effect="read_only")
def broken(value):
    try:
        raise KeyError(value)
    except KeyError as error:
        raise RuntimeError(f"failed: {value}") from error

@traced_tool(side_effect="read_only")
def spelled(text):
    for at in range(0, len(text), 9):
        yield text[at:at + 9]

def values():
    tool("x", api_key=S["keyword"])
    tool({"deep": [{"x": S["openai_format"]}], S["huggingface_dictionary"]: 1})
    tool(Account("bob", S["dataclass"]))
    tool(repr(Account("bob", S["repr"])))
    try:
        raise ValueError(f"connect(password='{S['traceback']}')")
    except ValueError:
        tool(traceback.format_exc())
    tool("Basic " + base64.b64encode(f"user:{S['basic_in_text']}".encode()).decode())
    "".join(spelled(f"the key is {S['anthropic_stream']} and on"))
    try:
        broken(S["github_exception"])
    except RuntimeError:
        pass
    tool(b"\xff\x00" + S["npm_bytes"].encode() + b"\xfe")
    tool([["authorization", "Bearer " + S["pair"]], ["cookie", "sid=" + S["pair_cookie"]]])
    tool(f"Cookie: theme=dark; sid={S['cookie_text']}; b=2")
    tool({"jsonrpc": "2.0", "params": {"arguments": {"apiKey": S["mcp"]}}})
    tool(json.dumps({"Credentials": {"SecretAccessKey": S["aws_json"], "SessionToken": S["aws_session"]}}))
    tool(f"-----BEGIN RSA PRIVATE KEY-----\n{S['pem']}\n-----END RSA PRIVATE KEY-----")
    tool({"kind": "Secret", "data": {"password": base64.b64encode(S["kubernetes"].encode()).decode()}})
    tool(f'<add key="Password" value="{S["attribute"]}"/><password>{S["element"]}</password>')
    tool(f"jdbc:postgresql://h/db?user=u&password={S['jdbc']} redis://:{S['redis']}@h:6379/0")
    tool({"connectionString": f"Endpoint=sb://x/;SharedAccessKey={S['connection']}"})
    state_transition("auth", from_="none", to=S["slack_state"])
    decision("login", input={"password": S["decision"]}, output="yes")
    print("the key is", S["openai_printed"])

def http():
    for client in (httpx, requests):
        client.post(
            BASE + "/json", json={"password": S["json_request"], "note": S["gitlab_request"]}, cookies={"session": S["cookie"]},
            headers={"Authorization": "Bearer " + S["bearer"], "X-Api-Key": S["api_key_header"]},
        )
        client.get(BASE + f"/a?api_key={S['query']}&sig={S['signature']}")
        client.post(BASE + "/form", data={"grant_type": "password", "client_secret": S["form"]})
        client.post(BASE + "/up", files={"file": ("creds.env", f"DB_PASSWORD={S['upload']}\nA=1\n".encode())}, data={"token": S["part"]})
        client.get(BASE + "/redirect", **({"follow_redirects": True} if client is httpx else {}))
        tool(client.get(BASE + "/denied").text)
        client.get(BASE + "/b", auth=("bob", S["basic"]))
    with requests.Session() as session:
        session.get(BASE + "/json")
        tool(len(session.cookies.get("sid")))
    with httpx.stream("GET", BASE + "/stream") as answer:
        tool("".join(answer.iter_text()))
    body = json.dumps({"secret": S["urllib_body"]}).encode()
    urllib.request.urlopen(urllib.request.Request(BASE + f"/u?access_token={S['urllib_query']}", data=body)).read()

def processes():
    subprocess.run(["cat"], input=f"password={S['stdin']}\n".encode(), env={**os.environ, "MY_SECRET": S["variable"]}, capture_output=True)
    subprocess.run(["echo", "--password", S["option"], f"--token={S['joined_option']}"], capture_output=True)
    subprocess.run(f"echo \"-H 'X-Api-Key: {S['shell']}'\"", shell=True, capture_output=True)
    try:
        subprocess.run(["/nonexistent/x", "--api-key", S["no_file"]])
    except OSError as error:
        tool(repr(error))
    try:
        subprocess.run(["false", "--password", S["called"]], check=True)
    except subprocess.CalledProcessError as error:
        tool(str(error))
    with open("settings.ini") as file:
        tool(file.read())
    tool(os.environ["MY_API_KEY"])

about = {"metadata": {"token": S["metadata"]}, "input": {"password": S["input"]}, "identity": {"api_key": S["identity"]}}
with record("agent", agent="a", **about) as run:
    values()
    http()
    processes()
    run.set_result({"refresh_token": S["result"]})
"""

#: What a secret begins with whose format gives it away; the others have none.
FORMATS = {"openai": "sk-proj-", "anthropic": "sk-ant-api03-", "github": "ghp_", "gitlab": "glpat-", "slack": "xoxb-",
           "npm": "npm_", "huggingface": "hf_"}  # fmt: skip
#: The secrets of the server, and of files and variables.
ELSEWHERE = (
    "location",
    "token",
    "nested",
    "json_in_json",
    "presigned",
    "set_cookie",
    "openai_denied",
    "openai_event",
    "file",
    "environment",
)


def planted() -> dict[str, str]:
    rng = random.Random(5)
    names = [*dict.fromkeys(re.findall(r"S\[[\"'](\w+)[\"']\]", PROGRAM)), *ELSEWHERE]
    made = {}
    for name in names:
        text = "".join(rng.choice(string.ascii_letters + string.digits) for _ in range(34))
        made[name] = FORMATS.get(name.partition("_")[0], "") + text + "7q"
    return made


@pytest.fixture
def secrets() -> dict[str, str]:
    return planted()


@pytest.fixture
def server(secrets: dict[str, str]) -> Iterator[str]:
    class Provider(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/stream":
                self.streamed()
                return
            body = json.dumps(self.answer(path)).encode()
            self.send_response({"/redirect": 302, "/denied": 401}.get(path, 200))
            if path == "/redirect":
                self.send_header("location", f"/final?access_token={secrets['location']}&state=1")
            self.send_header("content-type", "application/json")
            self.send_header("set-cookie", f"sid={secrets['set_cookie']}; Path=/")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def answer(self, path: str) -> Any:
            if path == "/denied":
                return {"error": f"Incorrect API key provided: {secrets['openai_denied']}"}
            if path != "/json":
                return {"ok": True}
            return {
                "access_token": secrets["token"],
                "nested": {"list": [{"client_secret": secrets["nested"]}]},
                "text": json.dumps({"inner": {"password": secrets["json_in_json"]}}),
                "url": f"https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Signature={secrets['presigned']}",
            }

        def streamed(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            event = f'data: {{"text": "the key is {secrets["openai_event"]} then"}}\n\n'.encode()
            for piece in (event[:45], event[45:]):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

    running = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{running.server_address[1]}"
    running.shutdown()
    running.server_close()
    thread.join(5)


def said(place: Path) -> str:
    """Everything in a directory, and what every piece of it says that may be base64."""
    data = b"\n".join(
        path.name.encode() + b"\n" + path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()
    )
    found = [text := data.decode("latin-1")]
    for match in re.finditer(r"[A-Za-z0-9+/]{16,}", text):
        found += [base64.b64decode(match[0][at:][: (len(match[0]) - at) // 4 * 4]).decode("latin-1") for at in range(4)]
    return "\n".join(found)


@pytest.mark.secrets_full
def test_no_secret_of_a_program_is_stored(tmp_path: Path, server: str, secrets: dict[str, str]) -> None:
    """Fields, texts, reprs, exceptions, streams, HTTP in every part of it, processes, files and variables: nothing of it is in plain. The
    replay, without the server, the file and the variable, has all of it from the vault, and is exact."""
    place = Place(tmp_path / "here", imports=SDKS)
    place.directory.mkdir()
    place.program(PROGRAM)
    (place.directory / "settings.ini").write_text(f"API_KEY={secrets['file']}\nX=1\n")
    (tmp_path / "planted.json").write_text(json.dumps(secrets))
    (tmp_path / "key").write_bytes(os.urandom(32))
    variables = {
        "SERVER": server,
        "PLANTED": str(tmp_path / "planted.json"),
        "TRACEKIT_VAULT_KEY_FILE": str(tmp_path / "key"),
    }
    done = place.cli("run", "agent.py", **variables, MY_API_KEY=secrets["environment"])
    assert done.returncode == 0, done.stderr
    stored = said(place.store)
    assert [name for name, secret in secrets.items() if secret.rpartition("-")[2].rpartition("_")[2] in stored] == []
    (place.directory / "settings.ini").unlink()
    again = place.cli("replay", place.run, **variables)
    assert again.returncode == 0, again.stderr
    assert ": exact (" in again.stderr
