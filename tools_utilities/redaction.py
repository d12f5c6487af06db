"""Keeps secrets out of everything that is shown, logged or kept.

Two things are masked: what has a secret's shape (a signature in a URL, an access key's id, a token
by its prefix, `secret_access_key=…`), and the values that this process knows to be secrets: those
of its environment, those that an S3 client was given, those that somebody typed in a URL.
`Console`, every log record, events and the plan of a run pass through here; `guard_process` does it
for a program. Masking is the last line: nothing that is kept is handed a secret in the first place.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from tools_utilities.errors import UsageError
from tools_utilities.process_environment import environment_now

if TYPE_CHECKING:
    from types import TracebackType

MASK = "***"
SHORTEST = 8
"""Characters of a known secret; shorter values would mask ordinary words."""
_NAME_WORDS = frozenset(
    {"SECRET", "TOKEN", "PASSWORD", "PASSWD", "PASSPHRASE", "APIKEY", "CREDENTIAL", "SAS", "PAT"}
)
_NAME_PARTS = ("API_KEY", "ACCESS_KEY", "ACCOUNT_KEY", "PRIVATE_KEY", "CONNECTION_STRING")
_NOT_SECRET = ("_FILE", "_PATH", "_DIR", "_URI", "_URL", "_ENDPOINT", "_EXPIRATION")
"""Ends of names whose values say where a secret is, not what it is."""

_SIGNED = (
    r"X-Amz-(?:Signature|Credential|Security-Token)|X-Goog-(?:Signature|Credential)|Signature|"
    r"AWSAccessKeyId|GoogleAccessId|Key-Pair-Id|Policy|sig|(?:[\w-]{0,40}[_-])?token|api_?key|key|"
    r"password|secret|auth"
)
_NAMED = (
    r"(?:secret(?:[_-]access)?(?:[_-]key)?|password|passwd|passphrase|api[_-]?key|"
    r"(?:access|account|private)[_-]key(?:[_-]id)?|"
    r"(?:session|security|auth|access|bearer|hf|refresh|api)[_-]token)"
)
_VALUE = r"[^\s\"'`,;&<>()\[\]{}\\]"
_SHAPES = re.compile(
    rf"(?i:(?P<query>[?&](?:{_SIGNED})=)[^\s\"'&#<>\\]+)"
    # `s3://bucket@host` is how a bucket at an endpoint is called here; a name and a key are two.
    r"|(?P<user>(?<!s3)(?<!r2)(?<!gs)(?<!az)://)[^\s/@\"'?#]+(?=@)"
    r"|(?P<keys>(?:s3|r2|gs|az)://)[^\s/@\"'?#:]*:[^\s/@\"'?#]+(?=@)"
    rf"|(?i:(?P<named>{_NAMED}\b[\"']?\s{{0,3}}[=:]\s{{0,3}}(?:b?[\"'])?){_VALUE}{{6,}})"
    r"|(?P<scheme>\b(?:(?:Bearer|Basic)\s|(?:Signature|Credential)=))(?=[\w.~+/=-]*\d)[\w.~+/=-]{12,}"
    r"|\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}\b"
    r"|\b(?:hf_|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-)[\w-]{16,}"
)
_MAYBE = re.compile(
    r"[=:@]|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]|hf_|gh[pousr]_|github_pat_|glpat-|xox|sk-|Bearer|Basic"
)
"""Without one of these there is nothing of a secret's shape; most keys and words have none."""
_SIGNED_QUERY = re.compile(rf"(?i:[?&](?:{_SIGNED})=([^\s\"'&#<>\\]+))")
_USER = re.compile(r"://([^\s/@\"'?#]+)@")


class KnownSecrets:
    """The values that a process knows to be secrets, longest first."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: tuple[str, ...] = ()
        self.add(*values)

    def add(self, *values: str | None) -> None:
        """Remember values; what is too short to tell from a word is left out."""
        found = {value for value in values if value and len(value) >= SHORTEST}
        if not found.issubset(self._values):
            # A new tuple: other threads go over the old one.
            self._values = tuple(sorted({*self._values, *found}, key=len, reverse=True))

    def add_typed(self, text: str) -> None:
        """Remember the secrets that stand in a text's URLs, as typed and as a server reads them."""
        for value in (*_SIGNED_QUERY.findall(text), *_USER.findall(text)):
            self.add(value, unquote(value), *unquote(value).split(":"))

    def add_environment(self, variables: Mapping[str, str]) -> None:
        """Remember the values of variables that are named as secrets are."""
        self.add(*(value for name, value in variables.items() if is_secret_name(name)))

    def redact(self, text: str, *, same_width: bool = False) -> str:
        """Return a text without its secrets; `same_width`: each letter of one becomes a `*`."""
        for value in self._values:
            if value in text:
                text = text.replace(value, _mask(value, same_width=same_width))

        if _MAYBE.search(text) is None:
            return text

        def masked(found: re.Match[str]) -> str:
            kept = next((part for part in found.groups() if part is not None), "")
            return kept + _mask(found[0][len(kept) :], same_width=same_width)

        return _SHAPES.sub(masked, text)


def _mask(secret: str, *, same_width: bool) -> str:
    return "*" * len(secret) if same_width else MASK


def is_secret_name(name: str) -> bool:
    """Say whether a variable or field of that name holds a secret."""
    upper = name.upper().replace("-", "_")
    if upper.endswith(_NOT_SECRET) or upper == "GOOGLE_APPLICATION_CREDENTIALS":
        return False
    return not _NAME_WORDS.isdisjoint(upper.split("_")) or any(
        part in upper for part in _NAME_PARTS
    )


KNOWN = KnownSecrets()
"""This process's own. State of the module on purpose: whoever logs cannot be handed it."""


def redact(text: str, *, same_width: bool = False) -> str:
    """Return a text without the secrets in it; fast where there are none."""
    return KNOWN.redact(text, same_width=same_width)


def redact_data(data: Any) -> Any:
    """Return plain data (dicts, lists, texts, numbers, structs) without the secrets in its texts."""
    if isinstance(data, str):
        return redact(data)
    if data is None or isinstance(data, bool | int | float):
        return data
    if isinstance(data, Mapping):
        return {
            redact(name) if isinstance(name, str) else name: MASK
            if isinstance(name, str) and value and isinstance(value, str) and is_secret_name(name)
            else redact_data(value)
            for name, value in data.items()
        }
    if isinstance(data, list | tuple | set | frozenset):
        return [redact_data(item) for item in data]
    if isinstance(data, msgspec.Struct):
        return redact_data(msgspec.to_builtins(data))
    return data


def refuse_signed(location: str, what: str) -> None:
    """Refuse an address with a secret in it where it would be kept or handed to other processes.

    Raises:
        UsageError: `location` has a signature in its query, or a name or password before its host.
    """
    if _USER.search(location) or ("://" in location and _SIGNED_QUERY.search(location)):
        raise UsageError(
            f"{redact(location)}: {what} would keep the secret that stands in this address",
            hint="Make shards of it (`quark shard ADDRESS into FOLDER`), or use a store that signs "
            "its requests: s3://, gs://, az://.",
        )


def guard_process(typed: Iterable[str] = ()) -> None:
    """Let no secret leave this process in a log record, a traceback or a warning.

    Takes the secrets of the environment and of what was `typed` on the command line. Every handler
    is covered, those that libraries add later too: records are made clean, not handlers.
    """
    KNOWN.add_environment(environment_now())
    for text in typed:
        KNOWN.add_typed(text)
    from tools_utilities.redacted_logs import redact_records, shown_traceback

    redact_records()

    def hook(
        kind: type[BaseException], error: BaseException, traceback: "TracebackType | None"
    ) -> None:
        if sys.stderr is not None:
            sys.stderr.write(shown_traceback(kind, error, traceback))

    import threading

    def thread_hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            hook(args.exc_type, args.exc_value, args.exc_traceback)

    # A program that Quark runs in, such as a test runner, keeps its own.
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = hook
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = thread_hook
