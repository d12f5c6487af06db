"""Fakes that are real code: an HTTP server that answers what a test scripts, and an S3 made of it.

def answer(request: Request) -> Reply: ...
with StubServer(answer) as server:            # any HTTP
    server.url, server.requests
with StubS3({"data/a.jsonl": b"..."}) as s3:  # list, head, get with ranges and If-Match
    s3.script = lambda request: Reply(403, ...) if request.key == "data/a.jsonl" else None
"""

import fcntl
import hashlib
import re
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape


@dataclass(frozen=True)
class Request:
    """One request as it came over the wire."""

    method: str
    target: str
    """The request target byte for byte: path and query as sent."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""

    @property
    def path(self) -> str:
        """Return the path, still percent-encoded."""
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        """Return the query's first values, decoded."""
        found = parse_qs(urlsplit(self.target).query, keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}

    @property
    def bucket(self) -> str:
        """Return the bucket of a path-style request, decoded."""
        return unquote(self.path.lstrip("/").partition("/")[0])

    @property
    def key(self) -> str:
        """Return the object key of a path-style request, decoded; empty for the bucket itself."""
        return unquote(self.path.lstrip("/").partition("/")[2])


@dataclass(frozen=True)
class Reply:
    """One answer; the faults happen to the body."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    wait_seconds: float = 0.0
    """Before the status line."""
    send_bytes: int | None = None
    """Send only so much of the body (its whole length is announced), then do `then`."""
    then: str = "close"
    """`close`, `reset` or `stall` (keep the connection open, send nothing more)."""
    drip_bytes: int | None = None
    """Send the body in pieces of this size …"""
    drip_seconds: float = 0.0
    """… with this pause after each."""


Answer = Callable[[Request], Reply]
Script = Callable[[Request], Reply | None]


class StubServer:
    """An HTTP/1.1 server on loopback that records every request; a thread a connection."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self._lock = Lock()
        self._stopping = False
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping = True
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.drop_connections()

    def sent(self, method: str, key: str | None = None) -> list[Request]:
        """Return the recorded requests of a method (and a key), in order of arrival."""
        with self._lock:
            return [
                request
                for request in self.requests
                if request.method == method and (key is None or request.key == key)
            ]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True  # the client went away, or the test is over

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - base's name
                """Say nothing: the requests are recorded."""

            def answer(self) -> None:
                length = int(self.headers.get("content-length", 0))
                request = Request(
                    self.command,
                    self.path,
                    {name.lower(): value for name, value in self.headers.items()},
                    self.rfile.read(length),
                )
                with stub._lock:
                    stub.requests.append(request)
                stub._send(self, request, stub.answer(request))

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_OPTIONS = do_PROPFIND = answer  # noqa: N815 - http.server's names

        return Handler

    def _send(self, handler: BaseHTTPRequestHandler, request: Request, reply: Reply) -> None:
        self._pause(reply.wait_seconds)
        headers = {name.lower(): value for name, value in reply.headers.items()}
        handler.send_response_only(reply.status)
        headers.setdefault("date", handler.date_time_string())
        headers.setdefault("content-length", str(len(reply.body)))
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        if request.method == "HEAD":
            return
        body = reply.body if reply.send_bytes is None else reply.body[: reply.send_bytes]
        step = reply.drip_bytes or len(body) or 1
        for offset in range(0, len(body), step):
            handler.wfile.write(body[offset : offset + step])
            handler.wfile.flush()
            self._pause(reply.drip_seconds)
        if len(body) < len(reply.body):
            self._break(handler, reply.then)

    def _break(self, handler: BaseHTTPRequestHandler, how: str) -> None:
        handler.close_connection = True
        while how == "stall" and not self._stopping:
            time.sleep(0.02)
        if how == "reset":
            self._drain(handler.connection)
            linger = struct.pack("ii", 1, 0)  # closing discards and sends RST
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            handler.connection.close()

    def _drain(self, connection: socket.socket) -> None:
        """Wait until the other side's kernel has all that was sent: a reset would take it back."""
        deadline = time.monotonic() + 10
        left = bytearray(4)
        while time.monotonic() < deadline and not self._stopping:
            fcntl.ioctl(connection, termios.TIOCOUTQ, left)
            if not int.from_bytes(left, sys.byteorder):
                return
            time.sleep(0.002)

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._stopping and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._connections: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        self._connections.append(connection)
        return connection, address

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of connections that tests break on purpose."""

    def drop_connections(self) -> None:
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # closed already


def xml_error(status: int, code: str, message: str = "", **fields: str) -> Reply:
    """Return an error as S3 words it; `fields` are further elements (RequestTime, Region …)."""
    extra = "".join(f"<{name}>{escape(text)}</{name}>" for name, text in fields.items())
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{code}</Code><Message>{escape(message)}</Message>{extra}"
        "<RequestId>STUB</RequestId></Error>"
    )
    return Reply(status, {"content-type": "application/xml"}, body.encode())


class StubS3(StubServer):
    """A read-only S3 of one dictionary, for any bucket name; `script` may answer first."""

    def __init__(self, objects: Mapping[str, bytes], script: Script | None = None) -> None:
        super().__init__(self._answer)
        self.objects = dict(objects)
        self.script: Script | None = script

    def _answer(self, request: Request) -> Reply:
        scripted = self.script(request) if self.script else None
        if scripted is not None:
            return scripted
        if request.method not in {"GET", "HEAD"}:
            return xml_error(405, "MethodNotAllowed", "this stub is read-only")
        if not request.key:
            return self._listing(request.query) if request.method == "GET" else Reply()
        return self._object(request)

    def _object(self, request: Request) -> Reply:
        data = self.objects.get(request.key)
        if data is None:
            return xml_error(404, "NoSuchKey", "The specified key does not exist.")
        etag = _etag(data)
        wanted = request.headers.get("if-match", etag)
        if wanted not in {etag, etag.strip('"')}:
            return xml_error(412, "PreconditionFailed", "At least one precondition did not hold.")
        headers = {
            "etag": etag,
            "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "accept-ranges": "bytes",
            "content-type": "binary/octet-stream",
        }
        spoken = request.headers.get("range")
        if request.method == "HEAD" or spoken is None:
            return Reply(200, headers, data)
        start, _, last = spoken.removeprefix("bytes=").partition("-")
        first = int(start) if start else max(0, len(data) - int(last))
        stop = min(int(last) + 1, len(data)) if start and last else len(data)
        if first >= len(data):
            return xml_error(416, "InvalidRange", "The requested range is not satisfiable")
        headers["content-range"] = f"bytes {first}-{stop - 1}/{len(data)}"
        return Reply(206, headers, data[first:stop])

    def _listing(self, query: Mapping[str, str]) -> Reply:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        token = query.get("continuation-token")
        after = bytes.fromhex(token).decode() if token else query.get("start-after", "")
        limit = int(query.get("max-keys", "1000"))
        coded = _url_coded if query.get("encoding-type") == "url" else escape
        entries = [entry for entry in self._entries(prefix, delimiter) if entry > after]
        page, more = entries[:limit], len(entries) > limit
        parts = "".join(self._entry_xml(entry, prefix, delimiter, coded) for entry in page)
        next_token = page[-1].encode().hex() if more else ""
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult>'
            f"<Prefix>{coded(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
            f"<MaxKeys>{limit}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>"
            + ("<EncodingType>url</EncodingType>" if coded is _url_coded else "")
            + (f"<NextContinuationToken>{next_token}</NextContinuationToken>" if more else "")
            + f"{parts}</ListBucketResult>"
        )
        return Reply(200, {"content-type": "application/xml"}, body.encode())

    def _entries(self, prefix: str, delimiter: str) -> Iterator[str]:
        seen = set()
        for key in sorted(self.objects):
            if key.startswith(prefix):
                name, found, _ = key[len(prefix) :].partition(delimiter or "\0")
                entry = prefix + name + delimiter if found else key
                if entry not in seen:
                    seen.add(entry)
                    yield entry

    def _entry_xml(
        self, entry: str, prefix: str, delimiter: str, coded: Callable[[str], str]
    ) -> str:
        if delimiter and entry.endswith(delimiter) and entry != prefix:
            return f"<CommonPrefixes><Prefix>{coded(entry)}</Prefix></CommonPrefixes>"
        data = self.objects[entry]
        etag = _etag(data).strip('"')
        return (
            f"<Contents><Key>{coded(entry)}</Key><LastModified>2026-01-01T00:00:00.000Z"
            f"</LastModified><ETag>&quot;{etag}&quot;</ETag><Size>{len(data)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )


def _url_coded(text: str) -> str:
    return escape(quote(text, safe="/"))


class StubCloud(StubS3):
    """Google's or Azure's object storage of one dictionary, as far as a plain client goes.

    Puts and deletes are obeyed; conditions are If-None-Match, If-Match, and Google's generation.
    `ignores` makes it dishonest: `create` and `replace` name conditions that it accepts unchecked.
    """

    def __init__(
        self, objects: Mapping[str, bytes], *, ignores: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(objects)
        self.ignores = ignores
        self._generations = dict.fromkeys(objects, 1)
        self._writes = Lock()

    def _answer(self, request: Request) -> Reply:
        scripted = self.script(request) if self.script else None
        if scripted is not None:
            return scripted
        if request.method == "PUT":
            with self._writes:
                return self._put(request)
        if request.method == "DELETE":
            there = self.objects.pop(request.key, None)
            return Reply(204) if there is not None else xml_error(404, "NoSuchKey")
        if request.query.get("comp") == "list":
            return self._azure_listing(request.query)
        if request.query.get("comp") == "batch":
            return self._azure_batch(request)
        reply = super()._answer(request)
        generation = str(self._generations.get(request.key, 0))
        return replace(reply, headers={**reply.headers, "x-goog-generation": generation})

    def _put(self, request: Request) -> Reply:
        current = self.objects.get(request.key)
        etag = None if current is None else _etag(current)
        generation = str(self._generations.get(request.key, 0) if current is not None else 0)
        creates = "if-none-match" in request.headers
        creates = creates or request.headers.get("x-goog-if-generation-match") == "0"
        refused = (
            (request.headers.get("if-none-match") == "*" and current is not None)
            or request.headers.get("if-match", etag) != etag
            or request.headers.get("x-goog-if-generation-match", generation) != generation
        )
        if refused and ("create" if creates else "replace") not in self.ignores:
            return xml_error(412, "PreconditionFailed", "a condition did not hold")
        self.objects[request.key] = request.body
        self._generations[request.key] = self._generations.get(request.key, 0) + 1
        headers = {
            "etag": _etag(request.body),
            "x-goog-generation": str(self._generations[request.key]),
            "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT",
        }
        return Reply(201, headers)

    def _azure_batch(self, request: Request) -> Reply:
        [path] = re.findall(rb"DELETE (\S+) HTTP/1.1", request.body)
        key = unquote(path.decode()).lstrip("/").partition("/")[2]
        there = self.objects.pop(key, None) is not None
        line = "202 Accepted" if there else "404 The specified blob does not exist."
        code = "" if there else "x-ms-error-code: BlobNotFound\r\n"
        body = (
            "--part\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\n"
            f"HTTP/1.1 {line}\r\nx-ms-request-id: 1\r\nx-ms-version: 2019-12-12\r\n{code}\r\n"
            "\r\n--part--\r\n"
        )
        return Reply(202, {"content-type": "multipart/mixed; boundary=part"}, body.encode())

    def _azure_listing(self, query: Mapping[str, str]) -> Reply:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("startFrom", "")
        parts = ""
        for entry in self._entries(prefix, delimiter):
            if entry < after:
                continue
            if delimiter and entry.endswith(delimiter) and entry != prefix:
                parts += f"<BlobPrefix><Name>{escape(entry)}</Name></BlobPrefix>"
                continue
            data = self.objects[entry]
            parts += (
                f"<Blob><Name>{escape(entry)}</Name><Properties>"
                "<Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified>"
                f"<Etag>{escape(_etag(data))}</Etag><Content-Length>{len(data)}</Content-Length>"
                "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
            )
        body = (
            '<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Prefix>'
            f"{escape(prefix)}</Prefix><Blobs>{parts}</Blobs><NextMarker/></EnumerationResults>"
        )
        return Reply(200, {"content-type": "application/xml"}, body.encode())


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
