"""What a store's refusal means, in the words and the error kinds of `errors.py`.

A `Failure` is a refusal as it came over the wire, whoever carried it; `explain` turns it into the
error to raise. Text from outside is shown escaped, shortened and without the secrets in use.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tools_utilities.errors import (
    AccessError,
    ConditionFailedError,
    DataNotFoundError,
    ObjectNotFoundError,
    ObjectReplacedError,
    QuarkError,
    StoreError,
)
from tools_utilities.redaction import redact

EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
MOVED = frozenset(
    {"PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException", "Redirect"}
)
SKEWED = frozenset({"RequestTimeTooSkewed", "RequestInTheFuture", "RequestExpired"})
UNKNOWN_KEYS = {
    "InvalidAccessKeyId": "the access key is not known to the store",
    "SignatureDoesNotMatch": "the signature does not match: the secret key is wrong",
    "InvalidToken": "the session token is not valid",
    "InvalidClientTokenId": "the access key is not known to the store",
}
BUSY = frozenset(
    {
        *("InternalError", "SlowDown", "ServiceUnavailable", "RequestTimeout", "Throttling"),
        *(
            "ThrottlingException",
            "RequestLimitExceeded",
            "TooManyRequests",
            "BandwidthLimitExceeded",
        ),
    }
)
_PERMISSION = {
    "list": "s3:ListBucket",
    "head": "s3:GetObject",
    "get": "s3:GetObject",
    "put": "s3:PutObject",
    "delete": "s3:DeleteObject",
}
_KMS_ACTION = re.compile(r"kms:[A-Za-z]+")


@dataclass(frozen=True)
class Failure:
    """A refusal (with a status) or a broken exchange (without one)."""

    status: int | None
    code: str = ""
    message: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Further elements of the error body: RequestTime, ServerTime, Region …"""
    region: str | None = None
    """Where the store says the bucket is."""
    connecting: bool = False
    """Nothing was sent: the connection did not come about."""

    @property
    def expired(self) -> bool:
        """Say whether the credentials ran out."""
        return self.code in EXPIRED

    @property
    def moved(self) -> bool:
        """Say whether the bucket is in another region than was asked."""
        malformed = self.code == "AuthorizationHeaderMalformed" and "Region" in self.fields
        return malformed or self.code in MOVED or self.status in {301, 302, 307, 308}

    @property
    def transient(self) -> bool:
        """Say whether the same request may go well later."""
        if self.moved:
            return False
        if self.status == 501:  # noqa: PLR2004 - not implemented, which will not pass
            return False
        busy = self.status in {408, 429} or (self.status or 0) >= 500  # noqa: PLR2004 - HTTP's classes
        return (self.status is None and not self.code) or self.code in BUSY or busy


@dataclass(frozen=True)
class Asked:
    """What was asked when it failed."""

    action: str
    """list, head, get, put or delete."""
    key: str
    """The object's key, or the listing's prefix."""
    bucket: str
    where: str
    """The store in words: its URI, and the endpoint where one is given."""
    region: str | None = None
    conditional: bool = False
    secrets: Sequence[str] = ()
    permission: str = ""
    """What the store calls the right that was needed; S3's action where empty."""

    @property
    def target(self) -> str:
        """Name the object or prefix."""
        return f"{self.where}: {printable(self.key)}" if self.key else self.where


def printable(text: str, secrets: Sequence[str] = (), limit: int = 300) -> str:
    """Return untrusted text in one line: control characters escaped, secrets out, shortened."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    text = redact(text)
    shown = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def explain(failure: Failure, asked: Asked) -> QuarkError:
    """Return the error to raise."""
    found = _of_credentials(failure, asked) or _of_condition(failure, asked)
    found = found or _of_absence(failure, asked) or _of_region(failure, asked)
    if found is None and failure.status in {401, 403}:
        found = _of_permission(failure, asked)
    return found or _other(failure, asked)


def _detail(failure: Failure, asked: Asked, **more: Any) -> dict[str, Any]:
    found = {"key": asked.key, "status": failure.status, "code": failure.code, **more}
    return {"phase": asked.action, **found}


def _said(failure: Failure, asked: Asked) -> str:
    message = printable(failure.message, asked.secrets)
    code = printable(failure.code, asked.secrets, 60)
    parts = [str(failure.status)] if failure.status else []
    if code and code != str(failure.status):
        parts.append(code)
    return ": ".join(part for part in (" ".join(parts), message) if part)


def _of_credentials(failure: Failure, asked: Asked) -> QuarkError | None:
    if failure.code in SKEWED:
        return _skewed(failure, asked)
    if failure.expired:
        return AccessError(
            f"{asked.target}: the credentials have expired",
            hint="Get new ones (`aws sso login`, or what made these) and run again.",
            **_detail(failure, asked),
        )
    if failure.code in UNKNOWN_KEYS:
        return AccessError(
            f"{asked.target}: {UNKNOWN_KEYS[failure.code]}",
            hint="Check the profile or the AWS_* variables, and that they belong to this store.",
            **_detail(failure, asked),
        )
    if asked.action == "head" and failure.status == 400 and not failure.message:  # noqa: PLR2004 - HTTP's number
        return AccessError(
            f"{asked.target}: the store refused the credentials without saying why (400); "
            "most often they have expired",
            hint="Get new credentials and run again.",
            **_detail(failure, asked),
        )
    return None


def _skewed(failure: Failure, asked: Asked) -> AccessError:
    ours, theirs = (_time(failure.fields.get(name)) for name in ("RequestTime", "ServerTime"))
    if ours is None or theirs is None:
        wrong, seconds = "differs too much from the server's", None
    else:
        seconds = round((theirs - ours).total_seconds())
        side = "behind" if seconds >= 0 else "ahead of"
        wrong = f"is {side} the server by {abs(seconds)} s"
    return AccessError(
        f"{asked.where}: this machine's clock {wrong}",
        hint="Correct the clock (turn on network time) and run again.",
        **_detail(failure, asked, skew_seconds=seconds),
    )


def _time(text: str | None) -> datetime | None:
    for form in ("%Y%m%dT%H%M%SZ", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S.%fZ"):
        try:
            return datetime.strptime(text or "", form).replace(tzinfo=UTC)
        except ValueError:
            continue
    return None


def _of_condition(failure: Failure, asked: Asked) -> QuarkError | None:
    lost = failure.status in {409, 412} or failure.code in {"PreconditionFailed", "Conflict"}
    if asked.action == "get" and failure.status == 412:  # noqa: PLR2004 - HTTP's number
        return ObjectReplacedError(
            f"{asked.target} is no longer the object that was listed",
            hint="List again; somebody wrote it in the meantime.",
            **_detail(failure, asked),
        )
    if not asked.conditional:
        return None
    if lost or (failure.status == 404 and failure.code != "NoSuchBucket"):  # noqa: PLR2004 - HTTP's number
        return ConditionFailedError(
            f"{asked.target} was not written: somebody else wrote or removed it first "
            f"({_said(failure, asked)})",
            hint="Read it again.",
            **_detail(failure, asked),
        )
    if failure.transient and not failure.connecting:
        return ConditionFailedError(
            f"{asked.target}: nobody can say whether it was written ({_said(failure, asked)})",
            hint="Read it again.",
            **_detail(failure, asked, unknown=True),
        )
    return None


def _of_absence(failure: Failure, asked: Asked) -> QuarkError | None:
    listing = asked.action == "list" and failure.status == 404  # noqa: PLR2004 - HTTP's number
    if failure.code in {"NoSuchBucket", "ContainerNotFound"} or listing:
        return DataNotFoundError(
            f"the bucket {printable(asked.bucket)} does not exist ({asked.where})",
            hint="Check the name, the endpoint and the account.",
            **_detail(failure, asked),
        )
    if failure.status == 404:  # noqa: PLR2004 - HTTP's number
        return ObjectNotFoundError(f"{asked.target} does not exist", **_detail(failure, asked))
    return None


def _of_region(failure: Failure, asked: Asked) -> QuarkError | None:
    if not failure.moved:
        return None
    ours, theirs = asked.region or "no region", failure.region or failure.fields.get("Region")
    there = printable(theirs) if theirs else "another region, which the store does not name"
    return AccessError(
        f"{asked.where}: the bucket is in {there}, the request was for {ours}",
        hint=f"Set region={there}." if theirs else "Set `region` to the bucket's own.",
        **_detail(failure, asked, region=ours, bucket_region=theirs),
    )


def _of_permission(failure: Failure, asked: Asked) -> QuarkError:
    permission = asked.permission or _PERMISSION[asked.action]
    said = _said(failure, asked)
    if asked.action == "head" and not failure.message:
        return AccessError(
            f"{asked.target}: 403, which may mean a missing object or a missing permission: "
            "a store hides absence from who may not list",
            hint="Allow s3:ListBucket to tell the two apart, and s3:GetObject to read.",
            **_detail(failure, asked, permission=permission),
        )
    if asked.action == "list":
        text = f"listing {asked.where} with prefix {printable(asked.key)!r}: access denied"
    else:
        text = f"{asked.target}: access denied"
    kms = sorted(set(_KMS_ACTION.findall(failure.message)))
    needed = " and ".join([permission, *kms])
    return AccessError(
        f"{text}; {permission} is missing ({said})",
        hint=f"Allow {needed} for these credentials.",
        **_detail(failure, asked, permission=permission),
    )


def _other(failure: Failure, asked: Asked) -> StoreError:
    said = _said(failure, asked) or "no answer"
    if failure.connecting:
        hint = "Nothing answers there: check the endpoint (AWS_ENDPOINT_URL) and the network."
    elif failure.transient:
        hint = "The store or the network is in trouble; try again."
    else:
        hint = "Check the bucket, the endpoint and what the store said."
    return StoreError(
        f"could not {asked.action} {asked.target} ({said})",
        hint=hint,
        **_detail(failure, asked, transient=failure.transient),
    )
