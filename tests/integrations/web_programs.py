"""Programs on ``requests``, ``urllib3``, ``urllib.request``, ``http.client`` and ``boto3``, each of what the libraries do.

A program takes the roots of the servers and returns what it saw. ``python -m tests.integrations.web_programs STORE record|replay``
runs all of them for the matrix of versions.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import io
import json
import re
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import requests
import requests.adapters
import urllib3

from tests.support.programs import main
from tests.support.web import CODED as BODIES
from tests.support.web import Roots

#: Headers that a replay gives otherwise: of a cookie not the value.
_OTHERWISE = ("set-cookie",)


Program = Callable[[Roots], Any]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def seen(response: requests.Response) -> dict[str, Any]:
    """All that a program can see of an answer."""
    return {
        "status": response.status_code,
        "reason": response.reason,
        "headers": sorted((k, v) for k, v in response.headers.items() if k.lower() not in _OTHERWISE),
        "text": response.text[:300],
        "length": len(response.content),
        "encoding": response.encoding,
        "url": urlsplit(response.url).path,
        "history": [(past.status_code, past.text, urlsplit(past.url).path) for past in response.history],
        "request": (response.request.method, bool(response.request.body)),
        "cookies": sorted(response.cookies.keys()),
        "version": response.raw.version,
    }


def failure(call: Callable[[], Any]) -> list[str]:
    """The exceptions that a call raises, one below the other."""
    try:
        return ["no failure", repr(call())]
    except Exception as error:
        found: list[str] = []
        one: BaseException | None = error
        while one is not None and len(found) < 4:
            text = re.sub(r"0x[0-9a-f]+|port=\d+|127.0.0.1:\d+|localhost:\d+|\(_ssl.c:\d+\)", "*", str(one))
            found.append(f"{type(one).__module__}.{type(one).__qualname__}: {text}")
            one = one.__cause__ or (
                None if isinstance(one, OSError) and not isinstance(one, requests.RequestException) else one.__context__
            )
        return found


# -- requests ----------------------------------------------------------------------------------------------------------------


@program
def requests_calls(roots: Roots) -> Any:
    """Methods, bodies, headers, a session's connection used again."""
    out = [seen(requests.get(roots.http + "/echo", params={"q": "ä b"}))]
    with requests.Session() as session:
        session.headers["authorization"] = "Bearer sk-" + "a1B2c3D4" * 5
        out.append(seen(session.post(roots.http + "/echo", json={"x": [1, None, "ü"]})))
        out.append(seen(session.put(roots.http + "/echo", data={"form": "1", "b": "2"})))
        out.append(seen(session.post(roots.http + "/echo", data=b"\x00\xff")))
        out.append(seen(session.post(roots.http + "/echo", files={"file": ("a.txt", b"content")})) | {"text": ""})
        out.append(seen(session.delete(roots.http + "/echo")))
        out.append(seen(session.head(roots.http + "/echo")))
        out.append(seen(session.options(roots.http + "/echo")))
        out.append(seen(session.get(roots.http + "/headers")))
        for code in (204, 304, 404, 500):
            out.append(seen(session.get(roots.http + f"/status?code={code}")))
    return out


@program
def requests_redirects(roots: Roots) -> Any:
    """Each kind of redirect, with the method and body that the library goes on with, and the answer itself."""
    out = []
    for status in (301, 302, 303, 307, 308):
        for method in ("GET", "POST"):
            out.append(
                seen(
                    requests.request(
                        method, f"{roots.http}/redirect?status={status}", data=b"x" if method == "POST" else None
                    )
                )
            )
    out.append(seen(requests.get(roots.http + "/redirect?status=302", allow_redirects=False)))
    raw = requests.get(roots.http + "/redirect?status=302", stream=True)
    out.append((type(raw.raw).__name__, raw.raw.read().decode(), len(raw.history)))
    out.append(
        failure(lambda: requests.get(roots.http + "/redirect?status=302&to=/redirect?status=302%26to=/redirect"))
    )
    return out


@program
def requests_cookies(roots: Roots) -> Any:
    """Cookies are in the jar, are sent on, and are kept out by path."""
    with requests.Session() as session:
        first = session.get(roots.http + "/cookie")
        second = session.get(roots.http + "/echo")
        return first.cookies.keys(), sorted(session.cookies.keys()), second.json()["jar"]


@program
def requests_codings(roots: Roots) -> Any:
    """Compressed bodies, whole and in pieces, and one that says it is compressed and is not."""
    out: list[Any] = [
        requests.get(roots.http + "/gzip").json()["text"][:20],
        requests.get(roots.http + "/deflate").text,
    ]
    with requests.get(roots.http + "/gzip-stream", stream=True) as response:
        out.append([piece.decode() for piece in response.iter_lines()])
    with requests.get(roots.http + "/gzip-stream", stream=True) as response:
        out.append([piece.decode() for piece in response.iter_content(None)])
    return [*out, failure(lambda: requests.get(roots.http + "/bad-gzip"))]


#: Bodies of the servers, and in what they come.
CODED = [f"/coded?name={name}&how={how}" for name in BODIES for how in ("whole", "chunks")]


def _shown(headers: Any) -> list[tuple[str, str | None]]:
    return [(name, headers.get(name)) for name in ("content-encoding", "content-length", "transfer-encoding")]


def _read(read: Callable[[], bytes | list[bytes]]) -> Any:
    """What a way of reading a body gives, byte for byte, or what it raises."""
    found: list[bytes | list[bytes]] = []
    failed = failure(lambda: found.append(read()))
    if not found:
        return failed
    return [piece.decode("latin-1") for piece in ([found[0]] if isinstance(found[0], bytes) else found[0])]


@program
def requests_as_it_travels(roots: Roots) -> Any:
    """Compressed bodies with their headers, each read in all ways in which the library can: as it travels, with the coding undone, both.

    Each body and each way come whole and in chunks, though not each body in each way."""
    ways: list[Callable[[requests.Response], bytes | list[bytes]]] = [
        lambda response: response.raw.read(),
        lambda response: response.raw.read(decode_content=True),
        lambda response: [*response.raw.stream(50, decode_content=False)],
        lambda response: [response.raw.read(10), response.raw.read(20, decode_content=False), response.raw.read()],
        lambda response: [response.raw.read(10), response.content],
        lambda response: [response.raw.read(10, decode_content=True), response.raw.read(10, decode_content=False)],
        lambda response: [*response.iter_content(7)],
        lambda response: response.content,
    ]
    out: list[Any] = []
    for number, path in enumerate(CODED):
        body, chunked = divmod(number, 2)
        for way in ways[(body + chunked) % 2 :: 2]:
            with requests.get(roots.http + path, stream=True) as response:
                out.append((_shown(response.headers), _read(lambda: way(response)), response.raw.tell()))  # noqa: B023
        whole = _read(lambda: requests.get(roots.http + path).content)  # noqa: B023
        head = requests.head(roots.http + path)
        out.append((whole, _shown(head.headers)))
    return out


@program
def urllib3_as_it_travels(roots: Roots) -> Any:
    """The same below requests."""
    out: list[Any] = []
    with urllib3.PoolManager(headers=urllib3.make_headers(accept_encoding=True)) as pool:
        for path in CODED:
            url = roots.http + path
            whole = pool.request("GET", url, decode_content=False)
            out.append((_shown(whole.headers), whole.data.decode("latin-1")))
            for decode in (False, True):
                read = pool.request("GET", url, preload_content=False)
                out.append(_read(lambda: read.read(decode_content=decode)))  # noqa: B023
                pieces = pool.request("GET", url, preload_content=False)
                out.append(_read(lambda: [*pieces.stream(decode_content=decode)]))  # noqa: B023
    return out


@program
def urllib_as_it_travels(roots: Roots) -> Any:
    """The standard library undoes no coding: who asks for one gets it, whole or in pieces."""
    out: list[Any] = []
    for path in CODED:
        request = urllib.request.Request(roots.http + path, headers={"Accept-Encoding": "gzip, deflate, br, zstd"})
        with urllib.request.urlopen(request) as response:
            out.append((_shown(response.headers), response.read().decode("latin-1")))
        with urllib.request.urlopen(request) as response:
            out.append(
                [piece.decode("latin-1") for piece in (response.read(100), response.readline(), response.read())]
            )
        host = urlsplit(roots.http)
        connection = http.client.HTTPConnection(host.hostname or "", host.port)
        connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        out.append((_shown(answer.headers), bytes(iter(lambda: (answer.read(1) or b"\0")[0], 0)).decode("latin-1")))  # noqa: B023
        connection.close()
    return out


@program
def requests_kept_packed(roots: Roots) -> Any:
    """A body whose coding nobody asked for belongs to the program, which unpacks it itself."""
    response = requests.get(roots.http + "/object", headers={"Accept-Encoding": "identity"}, stream=True)
    return gzip.decompress(response.raw.read()).decode(), response.headers["content-encoding"]


@program
def requests_streams(roots: Roots) -> Any:
    """Pieces as they were received: lines, chunks, bytes, and a body that is left."""
    out: list[Any] = []
    for size in (None, 1, 7, 100_000):
        with requests.get(roots.http + "/sse", stream=True) as response:
            found = [piece.decode("latin-1") for piece in response.iter_content(size)]
            out.append(found if size != 100_000 else "".join(found))
    with requests.post(roots.http + "/sse", json={"stream": True}, stream=True) as response:
        out.append(list(response.iter_lines(decode_unicode=True)))
    with requests.get(roots.http + "/chunks", stream=True) as response:
        out.append([len(piece) for piece in response.iter_content(None)])
    with requests.get(roots.http + "/chunks", stream=True) as response:
        out.append([len(piece) for piece in response.iter_content(30_000)])
    with requests.get(roots.http + "/big", stream=True) as response:
        out.append(len(b"".join(response.iter_content(5000))))
    with requests.get(roots.http + "/until-close", stream=True) as response:
        out.append(list(map(bytes.decode, response.iter_lines())))
    with requests.get(roots.http + "/sse", stream=True) as response:
        out.append(next(response.iter_lines()).decode())
    out.append(seen(requests.get(roots.http + "/old")))
    out.append(requests.get(roots.http + "/chunks").content[-300:-250].decode("latin-1"))
    return out


@program
def requests_uploads(roots: Roots) -> Any:
    """Files and generators are sent as they are produced, once; a 307 can't send a generator again."""
    drawn: list[int] = []

    def pieces() -> Iterator[bytes]:
        for i in range(4):
            drawn.append(i)
            yield b"piece %d;" % i

    with tempfile.TemporaryFile() as file:
        file.write(b"0123456789" * 10_000)
        file.seek(0)
        out: list[Any] = [len(requests.post(roots.http + "/echo", data=file).json()["body"])]
    out.append(requests.post(roots.http + "/echo", data=pieces()).json()["body"])
    out.append(drawn[:])
    out.append(requests.post(roots.http + "/echo", data=io.BytesIO(b"in memory")).json()["body"])
    out.append(failure(lambda: requests.post(roots.http + "/redirect?status=307", data=pieces())))
    out.append(len(drawn))
    return out


@program
def requests_failures(roots: Roots) -> Any:
    """Refused, unknown, reset, hung up, timed out, cut off, no HTTP: the library's own exceptions, and their causes."""
    nobody = f"http://127.0.0.1:{roots.closed}/"
    out = [failure(lambda: requests.get(nobody)), failure(lambda: requests.post(nobody, json={"x": 1}))]
    out.append(failure(lambda: requests.get(nobody.replace("http", "https"))))
    out.append(failure(lambda: requests.get("http://nowhere.invalid/")))
    for path in ("/hang-up", "/reset", "/garbage", "/cut", "/cut-chunks"):
        out.append(failure(lambda path=path: requests.get(roots.http + path).text))  # type: ignore[misc]
    out.append(failure(lambda: requests.get(roots.http + "/slow", timeout=0.2)))
    out.append(failure(lambda: requests.post(roots.http + "/slow", data="x", timeout=(2, 0.2))))
    response = requests.get(roots.http + "/stalls", stream=True, timeout=0.2)
    pieces = response.iter_content(None)
    out.append([next(pieces).decode(), next(pieces).decode(), *failure(lambda: next(pieces))])
    return out


@program
def requests_retries(roots: Roots) -> Any:
    """urllib3's own retries: on a status, and on a connection that nobody answers."""
    retry = urllib3.Retry(total=3, status_forcelist=[503], backoff_factor=0)
    with requests.Session() as session:
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retry))
        out: list[Any] = [session.get(roots.http + "/flaky?name=a&times=2").json()]
        out.append(failure(lambda: session.get(roots.http + "/flaky?name=b&times=9")))
        out.append(failure(lambda: session.get(f"http://127.0.0.1:{roots.closed}/")))
        out.append(failure(lambda: session.get(roots.http + "/hang-up")))
    return out


@program
def requests_hooks(roots: Roots) -> Any:
    """Response hooks, and authentication that asks again."""
    found: list[Any] = []

    def hook(response: requests.Response, **_: Any) -> None:
        found.append((response.status_code, len(response.content)))
        if "again" not in response.url:
            found.append(requests.get(roots.http + "/echo?again=1").status_code)

    out = requests.get(roots.http + "/echo", hooks={"response": hook}, auth=("user", "password-1234")).json()[
        "authorized"
    ]
    return out, found


@program
def requests_tls(roots: Roots) -> Any:
    """TLS with a certificate, without one, and without verifying."""
    urllib3.disable_warnings()
    out: list[Any] = [seen(requests.get(roots.https + "/echo", verify=roots.ca))]
    out.append(failure(lambda: requests.get(roots.https + "/echo")))
    out.append(requests.get(roots.https + "/echo", verify=False).status_code)
    with requests.Session() as session:
        session.verify = roots.ca
        out += [session.post(roots.https + "/echo", json={"n": n}).json()["body"] for n in range(3)]
    out.append(failure(lambda: requests.get(roots.http.replace("http", "https") + "/echo", verify=roots.ca)))
    return out


@program
def requests_proxies(roots: Roots) -> Any:
    """A proxy that forwards, one that tunnels, one that refuses, and one that is not there."""
    proxies = {"http": roots.proxy, "https": roots.proxy}
    out: list[Any] = [requests.get(roots.http + "/echo", proxies=proxies).json()["path"]]
    out.append(requests.get(roots.https + "/echo", proxies=proxies, verify=roots.ca).json()["path"])
    out.append(failure(lambda: requests.get(f"https://127.0.0.1:{roots.closed}/", proxies=proxies)))
    nobody = f"http://127.0.0.1:{roots.closed}"
    for url in (roots.http, roots.https):
        out.append(
            failure(
                lambda url=url: requests.get(url + "/echo", proxies={"http": nobody, "https": nobody}, verify=roots.ca)
            )
        )  # type: ignore[misc]
    return out


# -- urllib3 -----------------------------------------------------------------------------------------------------------------


@program
def urllib3_pools(roots: Roots) -> Any:
    """A pool's connection is used again; bodies read at once, in pieces, not decoded, left unread."""
    out: list[Any] = []
    with urllib3.PoolManager(ca_certs=roots.ca, maxsize=2) as pool:
        for path in ("/echo", "/headers", "/gzip", "/chunks"):
            response = pool.request("GET", roots.http + path)
            out.append((response.status, response.reason, len(response.data), response.version))
        response = pool.request("POST", roots.https + "/echo", fields={"a": "1"}, preload_content=False)
        out.append(len(response.read()))
        response.release_conn()
        response = pool.request("GET", roots.http + "/chunks", preload_content=False)
        out.append([len(piece) for piece in response.stream(1000)][:3])
        response.release_conn()
        response = pool.request("GET", roots.http + "/echo?unread=1", preload_content=False)
        response.drain_conn()
        response.release_conn()
        response = pool.request("GET", roots.http + "/redirect?status=303")
        out.append(json.loads(response.data)["path"])
        response = pool.request("PUT", roots.http + "/echo", body=io.BytesIO(b"z" * 40_000))
        out.append(len(json.loads(response.data)["body"]))
        response = pool.request("POST", roots.http + "/echo", body=iter([b"a", b"bc"]), chunked=True)
        out.append(json.loads(response.data)["body"])
        out.append(failure(lambda: pool.request("GET", roots.http + "/slow", timeout=0.2, retries=False)))
        out.append(failure(lambda: pool.request("GET", f"http://127.0.0.1:{roots.closed}", retries=1)))
        out.append(failure(lambda: pool.request("GET", roots.http + "/cut")))
    return out


# -- the standard library ------------------------------------------------------------------------------------------------------


@program
def urllib_requests(roots: Roots) -> Any:
    """``urllib.request``: bodies, redirects, errors with their bodies, connections that fail."""
    out: list[Any] = []
    with urllib.request.urlopen(roots.http + "/echo") as response:
        out.append((response.status, response.msg, json.load(response)["path"], urlsplit(response.url).path))
    with urllib.request.urlopen(urllib.request.Request(roots.http + "/echo", data=b"{}", method="PUT")) as response:
        out.append(json.load(response)["method"])
    with urllib.request.urlopen(roots.http + "/redirect?status=302") as response:
        out.append((urlsplit(response.url).path, sorted(name for name, _ in response.getheaders())))
    with urllib.request.urlopen(roots.http + "/sse") as response:
        out.append([line.decode("latin-1") for line in response])
    with urllib.request.urlopen(roots.http + "/chunks") as response:
        out.append([len(response.read1(1000)), len(response.read(3)), len(response.peek(1)) > 0, len(response.read())])
    try:
        urllib.request.urlopen(roots.http + "/status?code=404")
    except urllib.error.HTTPError as error:
        with error:
            out.append((error.code, error.reason, error.read().decode(), error.headers["retry-after"]))
    for url in (f"http://127.0.0.1:{roots.closed}", roots.http + "/hang-up", roots.https + "/echo"):
        out.append(failure(lambda url=url: urllib.request.urlopen(url)))  # type: ignore[misc]
    return out


@program
def http_client(roots: Roots) -> Any:
    """``http.client`` by hand: several requests over one connection, two at once, misuse, debug output, 1xx and upgrades."""
    host = urlsplit(roots.http).netloc
    out: list[Any] = []
    connection = http.client.HTTPConnection(host, timeout=5)
    connection.request("POST", "/echo", body="text", headers={"X-A": "1"})
    response = connection.getresponse()
    out.append(
        (response.status, response.getheader("x-request-id"), response.read(2).decode(), response.read1().decode()[:5])
    )
    response.read()
    connection.putrequest("PUT", "/echo", skip_accept_encoding=True)
    connection.putheader("Content-Length", "6")
    connection.endheaders()
    connection.send(b"abc")
    connection.send(b"def")
    out.append(json.loads(connection.getresponse().read())["body"])
    connection.request("GET", "/until-close")
    out.append(connection.getresponse().read().decode())
    connection.request("GET", "/echo")
    early = connection.getresponse()
    out.append(failure(connection.getresponse))
    connection.request("GET", "/echo?second=1")
    out.append(failure(connection.getresponse))
    out.append(failure(lambda: connection.request("GET", "/echo")))
    early.close()
    connection.close()
    other = http.client.HTTPConnection(host)
    connection.request("GET", "/echo?a")
    other.request("GET", "/echo?b")
    out += [json.loads(one.getresponse().read())["path"] for one in (other, connection)]
    other.close()
    connection.set_debuglevel(1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        connection.request("GET", "/headers")
        out.append(connection.getresponse().read().decode())
    out.append([line.split(":")[0] for line in printed.getvalue().splitlines()])
    connection.close()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", roots.closed)) as refused:
        out.append(failure(refused.connect))
        out.append(failure(lambda: refused.request("GET", "/")))
    return out


# -- boto3 -------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def client(roots: Roots, service: str, **options: Any) -> Iterator[Any]:
    import boto3
    from botocore.config import Config

    made = boto3.client(
        service,
        region_name="eu-central-1",
        endpoint_url=roots.http,
        aws_access_key_id="AKIAIOSFODNN7EXAMPLE",
        aws_secret_access_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        config=Config(retries={"total_max_attempts": 2}, **options),
    )
    try:
        yield made
    finally:
        made.close()


@program
def boto3_bedrock(roots: Roots) -> Any:
    """Converse and InvokeModel, whole and as event streams, an error of the service, and one that is tried again."""
    with client(roots, "bedrock-runtime") as bedrock:
        return _bedrock(bedrock)


def _bedrock(bedrock: Any) -> Any:
    ask: Any = [{"role": "user", "content": [{"text": "Hello"}]}]
    answer = bedrock.converse(modelId="m-1", messages=ask)
    out: list[Any] = [answer["output"], answer["usage"], answer["stopReason"]]
    stream = bedrock.converse_stream(modelId="m-1", messages=ask)
    out.append(list(stream["stream"]))
    answer = bedrock.invoke_model(modelId="m-1", body=json.dumps({"prompt": "Hello"}))
    out += [json.load(answer["body"]), answer["contentType"]]
    stream = bedrock.invoke_model_with_response_stream(modelId="m-1", body=json.dumps({"prompt": "Hello"}))
    out.append([event["chunk"]["bytes"].decode() for event in stream["body"]])
    out.append(failure(lambda: bedrock.converse(modelId="throttled", messages=ask)))
    with contextlib.closing(bedrock.converse_stream(modelId="breaks", messages=ask)["stream"]) as events:
        out.append(failure(lambda: list(events)))
    return out


@program
def boto3_storage(roots: Roots) -> Any:
    """Objects: uploads that wait to be asked for, one that is refused, downloads in pieces, one that is stored compressed."""
    with client(roots, "s3", s3={"addressing_style": "path"}) as storage:
        return _storage(storage)


def _storage(storage: Any) -> Any:
    out: list[Any] = [storage.put_object(Bucket="b", Key="one", Body=b"content")["ETag"]]
    with tempfile.TemporaryFile() as file:
        file.write(b"0123456789" * 10_000)
        file.seek(0)
        out.append(storage.put_object(Bucket="b", Key="file", Body=file)["ETag"])
    out.append(failure(lambda: storage.put_object(Bucket="b", Key="refused", Body=b"x" * 100_000)))
    body = storage.get_object(Bucket="b", Key="one")["Body"]
    out.append([piece.decode() for piece in body.iter_chunks(3)])
    packed = storage.get_object(Bucket="b", Key="packed")
    out.append((gzip.decompress(packed["Body"].read()).decode(), packed["ContentEncoding"]))
    out.append(storage.head_object(Bucket="b", Key="one")["ContentLength"])
    return out


@program
def boto3_failures(roots: Roots) -> Any:
    """No server, and one that hangs up: botocore's own exceptions, after its own retries."""
    nobody = roots._replace(http=f"http://127.0.0.1:{roots.closed}")
    with client(nobody, "bedrock-runtime") as refused, client(roots, "bedrock-runtime") as bedrock:
        out = [failure(lambda: refused.converse(modelId="m", messages=[]))]
        out.append(failure(lambda: bedrock.converse(modelId="hangs-up", messages=[])))
    return out


if __name__ == "__main__":
    main(PROGRAMS, lambda roots: Roots(*json.loads(roots)), "requests", "urllib3", "boto3")
