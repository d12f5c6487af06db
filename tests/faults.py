"""What can go wrong between a client and S3, as `tests/fault_proxy.py` makes it happen.

Each function returns a fault. `FAULTS` names them all with the requests they are for, so that a
matrix goes over every one: `for name, kind in FAULTS.items(): proxy.inject(kind.make(), kind.where)`.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime

from tests.fakes import xml_error
from tests.fault_exchange import Exchange, Response
from tests.fault_proxy import ANYTHING, Fault, Where
from tools_utilities.checksum import crc32c, encode_crc32c

CHECKSUM = "x-amz-checksum-"


def _named(name: str, act: Callable[[Exchange], Awaitable[None]]) -> Fault:
    act.fault_name = name  # type: ignore[attr-defined] # read by the proxy's counter
    return act


# Answers instead of the server's; nothing is forwarded.


def error(status: int, code: str, message: str = "", **fields: str) -> Fault:
    """Answer with an error as S3 words it."""

    async def act(exchange: Exchange) -> None:
        reply = xml_error(status, code, message, **fields)
        headers = {name.lower(): value for name, value in reply.headers.items()}
        body = b"" if exchange.request.method == "HEAD" else reply.body
        await exchange.send(Response(status, headers, body))

    return _named(f"{status} {code}", act)


def slow_down(status: int = 503) -> Fault:
    """Ask for fewer requests: 503, or 429 as R2 and others say it."""
    return error(status, "SlowDown" if status == 503 else "TooManyRequests", "Reduce your rate.")


def internal_error() -> Fault:
    """Fail without a reason: 500."""
    return error(500, "InternalError", "We encountered an internal error. Please try again.")


def expired_token() -> Fault:
    """Refuse credentials that have run out; with `after=N`, from the N-th request on."""
    return error(400, "ExpiredToken", "The provided token has expired.")


def forbidden() -> Fault:
    """Refuse a key, as where its KMS key may not be used; with `Where(key=…)` on some keys."""
    message = "User is not authorized to perform: kms:Decrypt on the resource"
    return error(403, "AccessDenied", message)


def missing() -> Fault:
    """Know nothing of an object that is listed."""
    return error(404, "NoSuchKey", "The specified key does not exist.")


def moved(region: str = "eu-central-1", status: int = 301) -> Fault:
    """Say that the bucket is in another region: 301, or 400 as signatures are refused there."""

    async def act(exchange: Exchange) -> None:
        if status == 301:
            reply = xml_error(status, "PermanentRedirect", "Use the specified endpoint.")
        else:
            message = f"The region is wrong; expecting '{region}'"
            reply = xml_error(status, "AuthorizationHeaderMalformed", message, Region=region)
        headers = {"content-type": "application/xml", "x-amz-bucket-region": region}
        body = b"" if exchange.request.method == "HEAD" else reply.body
        await exchange.send(Response(status, headers, body))

    return _named(f"{status} region", act)


def clock_skew(minutes: float = 20.0) -> Fault:
    """Refuse a request for its time: the server's clock is so much ahead."""

    async def act(exchange: Exchange) -> None:
        now = datetime.now(UTC)
        there = now + timedelta(minutes=minutes)
        times = {
            "RequestTime": exchange.request.headers.get("x-amz-date", f"{now:%Y%m%dT%H%M%SZ}"),
            "ServerTime": f"{there:%Y-%m-%dT%H:%M:%SZ}",
            "MaxAllowedSkewMilliseconds": "900000",
        }
        reply = xml_error(403, "RequestTimeTooSkewed", "The difference is too large.", **times)
        headers = {"content-type": "application/xml", "date": format_datetime(there, usegmt=True)}
        body = b"" if exchange.request.method == "HEAD" else reply.body
        await exchange.send(Response(403, headers, body))

    return _named("clock skew", act)


def clock_off(minutes: float) -> Fault:
    """Answer well, with the time of a clock that is so much ahead."""

    async def act(exchange: Exchange) -> None:
        response = await exchange.forward()
        headers = dict(response.headers)
        if "date" in headers:
            there = parsedate_to_datetime(headers["date"]) + timedelta(minutes=minutes)
            headers["date"] = format_datetime(there, usegmt=True)
        await exchange.send(replace(response, headers=headers))

    return _named("clock off", act)


# Connections that break.


def reset_before() -> Fault:
    """Break the connection before anything is done."""

    async def act(exchange: Exchange) -> None:
        await exchange.reset()

    return _named("reset before", act)


def reset_in_body(num_bytes: int | None = None) -> Fault:
    """Break the connection in the body, after so many bytes (half of it)."""

    async def act(exchange: Exchange) -> None:
        if await _part(exchange, num_bytes):
            await exchange.reset()

    return _named("reset in body", act)


def short_body(num_bytes: int | None = None, *, agreeing: bool = False) -> Fault:
    """End the body early; `agreeing`: and announce no more than that."""

    async def act(exchange: Exchange) -> None:
        if agreeing:
            response = await exchange.forward()
            await exchange.send(replace(response, body=_cut(response.body, num_bytes)))
        elif await _part(exchange, num_bytes):
            exchange.close()

    return _named("short body, agreeing" if agreeing else "short body", act)


def silent(seconds: float | None = None) -> Fault:
    """Take the request and never answer; nothing is done."""

    async def act(exchange: Exchange) -> None:
        await exchange.hang(seconds)

    return _named("silent", act)


def stall(num_bytes: int | None = None, seconds: float | None = None) -> Fault:
    """Send so many bytes of the body (half of it), and then nothing more."""

    async def act(exchange: Exchange) -> None:
        if await _part(exchange, num_bytes):
            await exchange.hang(seconds)

    return _named("stall", act)


def drip(bytes_per_second: float = 1024.0, piece_seconds: float = 0.1) -> Fault:
    """Send the body slowly."""
    size = max(1, int(bytes_per_second * piece_seconds))

    async def act(exchange: Exchange) -> None:
        response = await exchange.forward()
        await exchange.send(replace(response, body=b""), announced=len(response.body))
        for offset in range(0, len(response.body), size):
            await exchange.write(response.body[offset : offset + size])
            await asyncio.sleep(size / bytes_per_second)

    return _named("drip", act)


def delay(seconds: float) -> Fault:
    """Answer well, but late."""

    async def act(exchange: Exchange) -> None:
        await asyncio.sleep(seconds)
        await exchange.relay()

    return _named("delay", act)


def reply_lost(*, silent_seconds: float | None = 0.0) -> Fault:
    """Do what was asked, and lose the answer: the connection breaks, at once or after a silence."""

    async def act(exchange: Exchange) -> None:
        await exchange.forward()
        if silent_seconds != 0:
            await exchange.hang(silent_seconds)
        await exchange.reset()

    return _named("reply lost", act)


def applied_late(seconds: float) -> Fault:
    """Break the connection, and do what was asked some time later all the same."""

    async def act(exchange: Exchange) -> None:
        async def apply() -> None:
            await asyncio.sleep(seconds)
            await exchange.forward()

        exchange.proxy.later(apply())
        await exchange.reset()

    return _named("applied late", act)


def applied_twice() -> Fault:
    """Do what was asked twice, and give the second answer: a repeated request."""

    async def act(exchange: Exchange) -> None:
        await exchange.forward()
        await exchange.send(await exchange.forward())

    return _named("applied twice", act)


# Bytes and objects that are not what they were.


def bit_flip(at: int | None = None, *, checksum: bool = False) -> Fault:
    """Turn one bit of the body over (in its middle); `checksum`: under the true CRC-32C's header."""

    async def act(exchange: Exchange) -> None:
        response = await exchange.forward()
        headers = {n: v for n, v in response.headers.items() if not n.startswith(CHECKSUM)}
        # S3 tells the sum of whole objects only: a range's answer carries none.
        if checksum and response.status == 200:
            headers[f"{CHECKSUM}crc32c"] = encode_crc32c(crc32c(response.body))
            headers[f"{CHECKSUM}type"] = "FULL_OBJECT"
        body = bytearray(response.body)
        if body:
            body[len(body) // 2 if at is None else at] ^= 1
        await exchange.send(Response(response.status, headers, bytes(body)))

    return _named("bit flip under a checksum" if checksum else "bit flip", act)


def replaced(data: bytes) -> Fault:
    """Answer as if another object stood there since the listing; with times=ALWAYS it stays."""
    etag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'

    async def act(exchange: Exchange) -> None:
        wanted = exchange.request.headers.get("if-match")
        if wanted not in {None, "*", etag, etag.strip('"')}:
            await error(412, "PreconditionFailed")(exchange)
            return
        headers = {"etag": etag, "accept-ranges": "bytes", "content-length": str(len(data))}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", exchange.request.headers.get("range", ""))
        if exchange.request.method == "HEAD" or asked is None:
            await exchange.send(Response(200, headers, data))
            return
        start, end = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
        if start >= len(data):
            await error(416, "InvalidRange")(exchange)
            return
        headers["content-range"] = f"bytes {start}-{end}/{len(data)}"
        await exchange.send(Response(206, headers, data[start : end + 1]))

    return _named("replaced", act)


def first(act_first: Callable[[], object]) -> Fault:
    """Do something real before the request is forwarded: delete or replace the object, say."""

    async def act(exchange: Exchange) -> None:
        await asyncio.to_thread(act_first)
        await exchange.relay()

    return _named("first", act)


def repeated_page() -> Fault:
    """Answer the next page of a listing with the page before, its own continuation included."""

    async def act(exchange: Exchange) -> None:
        before = exchange.proxy.listings.get(exchange.listed)
        if before is None:
            await exchange.relay()
        else:
            await exchange.send(before)

    return _named("repeated page", act)


async def _part(exchange: Exchange, num_bytes: int | None) -> bool:
    """Send the head and a part of the body; False where the whole answer was sent: it has no body."""
    response = await exchange.forward()
    part = _cut(response.body, num_bytes)
    await exchange.send(replace(response, body=part), announced=len(response.body))
    return len(part) < len(response.body)


def _cut(body: bytes, num_bytes: int | None) -> bytes:
    return body[: len(body) // 2 if num_bytes is None else num_bytes]


@dataclass(frozen=True)
class Kind:
    """A fault by name."""

    make: Callable[[], Fault]
    where: Where = ANYTHING
    wrong_bytes: bool = False
    """The answer looks right and is not: only a size or a checksum that is known shows it."""


GETS = Where("GET", listing=False)
LISTS = Where("GET", listing=True)
NEXT_PAGES = Where("GET", listing=True, query="continuation-token=|start-after=|marker=")
PUTS = Where("PUT")
ANY_READ = Where("GET HEAD", listing=False)

FAULTS: dict[str, Kind] = {
    "503": Kind(slow_down),
    "429": Kind(lambda: slow_down(429)),
    "500": Kind(internal_error),
    "reset before": Kind(reset_before),
    "reset in body": Kind(reset_in_body, GETS),
    "short body": Kind(short_body, GETS),
    "short body, agreeing": Kind(lambda: short_body(agreeing=True), GETS, wrong_bytes=True),
    "bit flip": Kind(bit_flip, GETS, wrong_bytes=True),
    "bit flip under a checksum": Kind(lambda: bit_flip(checksum=True), GETS, wrong_bytes=True),
    "silent": Kind(silent),
    "stall": Kind(stall, GETS),
    "drip": Kind(drip, GETS),
    "301 region": Kind(moved),
    "400 region": Kind(lambda: moved(status=400)),
    "403": Kind(forbidden, ANY_READ),
    "404 after list": Kind(missing, ANY_READ),
    "replaced after list": Kind(lambda: replaced(b"another object"), ANY_READ),
    "expired token": Kind(expired_token),
    "clock skew": Kind(clock_skew),
    "reply lost": Kind(reply_lost, PUTS),
    "applied late": Kind(lambda: applied_late(0.5), PUTS),
    "applied twice": Kind(applied_twice, PUTS),
    "repeated page": Kind(repeated_page, NEXT_PAGES),
}
