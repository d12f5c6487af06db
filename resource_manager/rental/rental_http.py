"""Requests to the provider's REST API: signed, retried with patience, and never more than asked for.

The key goes into one header of requests to the one address, and nowhere else: redirects are not
followed, and an address that is neither https nor this machine is refused. It comes from the
environment alone, so that no file of a project can send it to another host.
"""

import random
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from tools_utilities.errors import AccessError, MachineError, UsageError
from tools_utilities.json_text import decode_json

if TYPE_CHECKING:
    from urllib3 import PoolManager, Timeout

KEY_VARIABLE, URL_VARIABLE = "VAST_API_KEY", "VAST_URL"
USUAL_URL = "https://console.vast.ai"
BASE_PATH = "/api/v0"
PATIENCE_SECONDS = 90.0
"""How long a request is tried again that is refused for now or gets no answer."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 15.0
CONNECT_SECONDS, READ_SECONDS = 10.0, 30.0
MOST_BYTES = 64 << 20
TOLD_CHARACTERS = 200
TOO_MANY, SERVER_TROUBLE = 429, 500
SAFE_METHODS = ("GET", "POST", "DELETE")
"""Asking twice does what asking once does: a search, a look, a deletion. A creation is another matter."""


class ReplyLostError(MachineError):
    """A request that must not be repeated blindly may or may not have been carried out."""


class RefusedError(MachineError):
    """The provider answered, and does not do it; detail: status, code."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Whose machines, and at which address."""

    key: str
    url: str = USUAL_URL

    def __repr__(self) -> str:
        return f"Account(url={self.url!r})"  # never the key

    @property
    def host(self) -> str:
        """The address as it is said."""
        return urlsplit(self.url).netloc


def account_from(variables: Mapping[str, str]) -> Account:
    """Return the account that the environment names.

    Raises:
        AccessError: there is no key.
        UsageError: the address would send the key in the clear.
    """
    key = variables.get(KEY_VARIABLE, "").strip()
    url = variables.get(URL_VARIABLE, "").strip().rstrip("/") or USUAL_URL
    if not is_safe_address(url):
        raise UsageError(
            f"{URL_VARIABLE}: not an https address", hint=f"Unset it: {USUAL_URL} is the usual one."
        )
    if not key or not key.isascii() or not key.isprintable():
        raise AccessError(
            f"{KEY_VARIABLE} is not set" if not key else f"{KEY_VARIABLE} is not a key",
            hint=f"Make a key in the console of {USUAL_URL} and put it into {KEY_VARIABLE}.",
        )
    return Account(key=key, url=url)


def is_safe_address(url: str) -> bool:
    """Whether a key may be sent to an address: by https, or to this machine."""
    parts = urlsplit(url)
    own = parts.hostname in ("127.0.0.1", "::1", "localhost")
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and own))


class RentalHttp:
    """Sends one request at a time and returns the JSON object of the answer."""

    def __init__(
        self,
        account: Account,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.account = account
        self._clock, self._sleep = clock, sleep
        self.patience_seconds = patience_seconds
        """Of the next request, and the longest wait for one answer."""
        self._pool: PoolManager | None = None

    def send(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send a request below the base path.

        Raises:
            AccessError: the key is refused.
            RefusedError: the provider does not do it.
            ReplyLostError: a creation that may have been carried out.
            MachineError: no usable answer in time.
        """
        deadline = self._clock() + self.patience_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return self._once(method, path, body)
            except _AgainError as error:
                # Not all at one time: others were refused at this moment too.
                wait = max(error.wait_seconds, pause * random.uniform(0.7, 1.3))  # noqa: S311 - no secret
                if self._clock() + wait > deadline:
                    raise MachineError(
                        f"{self.account.host}: {error}; tried for {self.patience_seconds:.0f} s",
                        hint="The provider or the network is in trouble; try again later.",
                        phase=f"{method} {path}",
                    ) from None
                self._sleep(wait)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _once(self, method: str, path: str, body: Any) -> dict[str, Any]:
        from urllib3.exceptions import HTTPError, NewConnectionError

        headers = {"Authorization": f"Bearer {self.account.key}", "Accept": "application/json"}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = msgspec.json.encode(body)
        url = f"{self.account.url}{BASE_PATH}{path}"
        try:
            response = self._connected().request(
                method, url, body=data, headers=headers, redirect=False, retries=False,
                preload_content=False, timeout=self._timeout(),
            )  # fmt: skip
            try:
                text = response.read(MOST_BYTES + 1, decode_content=True)
            finally:
                response.close()
        except NewConnectionError as error:
            raise _AgainError(_reason(error)) from None  # nothing was sent
        except HTTPError as error:
            if method in SAFE_METHODS:
                raise _AgainError(_reason(error)) from None
            raise self._lost(_reason(error), method, path) from None
        return self._answer(method, path, response.status, response.headers, text)

    def _answer(
        self, method: str, path: str, status: int, headers: Mapping[str, str], text: bytes
    ) -> dict[str, Any]:
        if status == TOO_MANY:  # not carried out, whatever it was
            raise _AgainError("too many requests (429)", _wait_of(headers.get("Retry-After")))
        if status >= SERVER_TROUBLE:
            if method in SAFE_METHODS:
                raise _AgainError(f"the server answered {status}")
            raise self._lost(f"the server answered {status}", method, path)
        answer = _object_of(text) if len(text) <= MOST_BYTES else None
        if status in (401, 403):
            raise AccessError(
                f"{self.account.host} refuses the key ({status}){self._said(answer)}",
                hint=f"Check {KEY_VARIABLE}, and what its key may do.",
                status=status,
            )
        done = 200 <= status < 300  # noqa: PLR2004 - HTTP's class of success
        if done and answer is None:
            if method in SAFE_METHODS:
                raise _AgainError("its answer is not JSON")
            raise self._lost("its answer is not JSON", method, path)
        if not done or answer is None or answer.get("success") is False:
            code = answer.get("error") if answer else None
            raise RefusedError(
                f"{self.account.host}: {method} {path}: {status}{self._said(answer)}",
                hint="Nothing was changed by it.",
                status=status, code=str(code or ""),
            )  # fmt: skip
        return answer

    def _said(self, answer: dict[str, Any] | None) -> str:
        """Return the provider's own words; they could repeat what was sent."""
        said = (answer or {}).get("msg") or (answer or {}).get("error")
        if not said:
            return ""
        text = str(said).replace(self.account.key, "***")[:TOLD_CHARACTERS]
        return f": {text}"

    def _lost(self, reason: str, method: str, path: str) -> ReplyLostError:
        return ReplyLostError(
            f"{self.account.host}: {reason}; it may have been carried out",
            hint="Look at what is rented.",
            phase=f"{method} {path}",
        )

    def _timeout(self) -> "Timeout":
        from urllib3 import Timeout

        most = self.patience_seconds
        return Timeout(connect=min(CONNECT_SECONDS, most), read=min(READ_SECONDS, most))

    def _connected(self) -> "PoolManager":
        if self._pool is None:
            import urllib3

            self._pool = urllib3.PoolManager()
        return self._pool


class _AgainError(Exception):
    """Worth another try."""

    def __init__(self, reason: str, wait_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


def _reason(error: Exception) -> str:
    return f"no answer ({type(getattr(error, 'reason', None) or error).__name__})"


def _wait_of(text: str | None) -> float:
    return float(text) if text and text.isascii() and text.isdigit() else 0.0


def _object_of(text: bytes) -> dict[str, Any] | None:
    try:
        found = decode_json(text)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else None
