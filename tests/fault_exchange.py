"""One request at the fault proxy, and what may be done with it: forwarded, answered, broken.

HTTP/1.1 as S3 clients speak it: bodies by length or in chunks, `Expect: 100-continue`.
"""

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
import termios
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.fakes import Request

PIECE_BYTES = 1 << 16
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect"}
_NO_BODY = {204, 304}
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Response:
    """An answer whole: header names in lower case, the body decoded from its framing."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Logged:
    """One request as the proxy saw it."""

    request: Request
    fault: str | None = None
    status: int | None = None
    """What the client was told; None: nothing."""
    sent_bytes: int = 0
    """Of the body, to the client."""
    answers: list[int] = field(default_factory=list)
    """What the server said each time it was forwarded."""
    at: float = field(default_factory=time.monotonic)
    """When it came, on the monotonic clock."""

    @property
    def applied(self) -> int:
        """How often it was forwarded."""
        return len(self.answers)


def is_listing(request: Request) -> bool:
    """Say whether a request lists objects."""
    query = request.query
    return request.method == "GET" and ("list-type" in query or "prefix" in query)


class Proxy(Protocol):
    """What an exchange asks of the proxy."""

    listings: dict[str, Response]

    async def connect(self) -> Connection:
        """Open a connection to the server."""

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something after the exchange has ended."""


class Exchange:
    """One request, and what may be done with it."""

    def __init__(self, proxy: Proxy, request: Request, client: Connection) -> None:
        self.proxy = proxy
        self.request = request
        self.logged = Logged(request)
        self.ended = False
        """The connection is not used for another request."""
        self._reader, self._writer = client

    async def forward(self) -> Response:
        """Send the request on, and return the server's whole answer."""
        async with self._upstream() as (reader, status, headers):
            body = b"".join([piece async for piece in self._pieces(reader, status, headers)])
        return Response(status, headers, body)

    async def relay(self) -> None:
        """Send the request on, and the answer back while it arrives."""
        if is_listing(self.request):
            await self.send(self.remembered(await self.forward()))
            return
        async with self._upstream() as (reader, status, headers):
            if "content-length" not in headers and self._has_body(status):
                body = b"".join([piece async for piece in self._pieces(reader, status, headers)])
                await self.send(Response(status, headers, body))
                return
            self._head(status, headers)
            async for piece in self._pieces(reader, status, headers):
                await self.write(piece)
            await self._writer.drain()

    def remembered(self, response: Response) -> Response:
        """Keep a page of a listing, for a store that sends it again."""
        self.proxy.listings[self.listed] = response
        return response

    @property
    def listed(self) -> str:
        """What is listed."""
        query = self.request.query
        return f"{self.request.bucket}/{query.get('prefix', '')}/{query.get('delimiter', '')}"

    async def send(self, response: Response, *, announced: int | None = None) -> None:
        """Send an answer whose body may be shorter than what is announced."""
        headers = dict(response.headers)
        if self.request.method != "HEAD" or "content-length" not in headers:
            headers["content-length"] = str(len(response.body) if announced is None else announced)
        self._head(response.status, headers)
        if self._has_body(response.status):
            await self.write(response.body)
        await self._writer.drain()

    async def write(self, piece: bytes) -> None:
        """Send a piece of the body."""
        self.logged.sent_bytes += len(piece)
        self._writer.write(piece)
        await self._writer.drain()

    def close(self) -> None:
        """End the connection in good order, after what was sent."""
        self.ended = True

    async def reset(self) -> None:
        """Break the connection: the client gets what was sent, and then ECONNRESET."""
        self.ended = True
        connection = self._writer.get_extra_info("socket")
        left = bytearray(4)
        for _ in range(1_000):  # a reset would take back what the other side's kernel has not got
            fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, left)
            if not int.from_bytes(left, sys.byteorder):
                break
            await asyncio.sleep(0.002)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def hang(self, seconds: float | None) -> None:
        """Say nothing more; for so long, or until the client has gone."""
        self.ended = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reader.read(), seconds)

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.logged.status = status
        lines = [f"HTTP/1.1 {status} Answer"]
        lines += [f"{name}: {value}" for name, value in headers.items() if name not in _HOP_BY_HOP]
        if headers.get("content-length") is None and status not in _NO_BODY:
            lines.append("content-length: 0")
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    def _has_body(self, status: int) -> bool:
        return self.request.method != "HEAD" and status not in _NO_BODY

    @contextlib.asynccontextmanager
    async def _upstream(self) -> AsyncIterator[tuple[asyncio.StreamReader, int, dict[str, str]]]:
        reader, writer = await self.proxy.connect()
        try:
            writer.write(_request_head(self.request))
            writer.write(self.request.body)
            await writer.drain()
            status, headers = await _response_head(reader)
            self.logged.answers.append(status)
            yield reader, status, headers
        finally:
            writer.close()

    async def _pieces(
        self, reader: asyncio.StreamReader, status: int, headers: Mapping[str, str]
    ) -> AsyncIterator[bytes]:
        if not self._has_body(status):
            return
        if headers.get("transfer-encoding", "").lower() == "chunked":
            yield await _dechunked(reader)
        elif "content-length" in headers:
            left = int(headers["content-length"])
            while left:
                piece = await reader.read(min(left, PIECE_BYTES))
                if not piece:
                    raise asyncio.IncompleteReadError(b"", left)
                left -= len(piece)
                yield piece
        else:
            yield await reader.read()


async def read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Request | None:
    """Read a request with its body; None at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, headers = _parse(head)
    method, target, _ = first.split(" ", 2)
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _dechunked(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, target, headers, body)


async def _response_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    while True:
        first, headers = _parse(await reader.readuntil(b"\r\n\r\n"))
        status = int(first.split(" ", 2)[1])
        if status >= 200:
            return status, headers


async def _dechunked(reader: asyncio.StreamReader) -> bytes:
    pieces = []
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while (await reader.readuntil(b"\r\n")) != b"\r\n":
        pass  # trailers
    return b"".join(pieces)


def _request_head(request: Request) -> bytes:
    headers = {**request.headers, "content-length": str(len(request.body))}
    lines = [f"{request.method} {request.target} HTTP/1.1", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items() if name not in _HOP_BY_HOP]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _parse(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first, {name.strip().lower(): value.strip() for name, _, value in pairs}
