"""Temporary credentials of Cloudflare R2 for one run: they end by themselves and may do only what the run does.

`remote_credentials=session` where the stores are R2. One credential is of one bucket, and has one permission
for all its prefixes; so a run that reads data and writes checkpoints is given two: what it reads it cannot
write. The API is Cloudflare's (POST /accounts/{account}/r2/temp-access-credentials); its token comes from
the environment alone, and is sent to nobody else.
"""

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import msgspec

from brain.ml.training_job import TrainingJob
from resource_manager.remote_session import MARGIN_SECONDS, SHORTEST_SECONDS
from resource_manager.rental.rental_http import is_safe_address
from tools_utilities.errors import AccessError, UsageError
from tools_utilities.json_text import decode_json
from tools_utilities.object_store import StoreSpec

TOKEN_VARIABLE, URL_VARIABLE = "CLOUDFLARE_API_TOKEN", "CLOUDFLARE_BASE_URL"
USUAL_URL = "https://api.cloudflare.com/client/v4"
READ, WRITE = "object-read-only", "object-read-write"
LONGEST_SECONDS = 604_800
"""What Cloudflare allows."""
TRIES, PAUSE_SECONDS = 4, 1.0
ANSWER_SECONDS = 20.0
MOST_BYTES = 1 << 20
TOLD_CHARACTERS = 200
TOO_MANY, SERVER_TROUBLE = 429, 500
OWN_KEYS = "QUARK_STORE"
"""Variables of the second credential begin with QUARK_STORE_2, and so on."""
_HOST = re.compile(r"([0-9a-f]{32})(?:\.[a-z]+)?\.r2\.cloudflarestorage\.com")
_LEAVE_OUT = "or leave remote_credentials out: then the keys themselves are sent."


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """One credential that a run needs."""

    account: str
    bucket: str
    permission: str
    prefixes: tuple[str, ...]
    """Empty: the whole bucket."""
    keys: str | None
    """What its variables begin with; None: they are AWS's usual ones."""


def account_of(spec: StoreSpec) -> str | None:
    """Return the Cloudflare account of a store by its endpoint; None: it is not R2."""
    found = _HOST.fullmatch(urlsplit(spec.endpoint_url or "").hostname or "")
    return None if found is None else found[1]


def grants_of(job: TrainingJob, whole: Callable[[StoreSpec], StoreSpec]) -> tuple[Grant, ...]:
    """Return the credentials of a run whose signed S3 stores are all R2; none where they are not.

    `whole` tells a store's endpoint where the environment gives it.
    """
    wanted: dict[tuple[str, str, str], list[str]] = {}
    for spec, prefix, permission in _uses(job):
        account = account_of(whole(spec))
        if account is None:
            return ()
        bucket = spec.uri.partition("://")[2]
        wanted.setdefault((account, bucket, permission), []).append(prefix)
    return tuple(
        Grant(
            account=account,
            bucket=bucket,
            permission=permission,
            prefixes=() if "" in prefixes else tuple(dict.fromkeys(prefixes)),
            keys=None if not number else f"{OWN_KEYS}_{number + 1}",
        )
        for number, ((account, bucket, permission), prefixes) in enumerate(wanted.items())
    )


def _uses(job: TrainingJob) -> list[tuple[StoreSpec, str, str]]:
    """Return (store, folder, permission) of what a run reads and writes with S3 keys."""
    uses = [
        # A listing of `d/train-` may ask for the folder it is in.
        (source.store, source.prefix[: source.prefix.rfind("/") + 1], READ)
        for source in (*job.train, *job.val)
    ]
    if job.checkpoints is not None:
        uses.append((job.checkpoints.store, job.checkpoints.prefix, WRITE))
    return [
        use for use in uses if use[0].uri.startswith(("s3://", "r2://")) and not use[0].anonymous
    ]


def keys_of(grants: tuple[Grant, ...], spec: StoreSpec, permission: str) -> str | None:
    """Return what the variables of a store's credential begin with; None: AWS's usual ones."""
    bucket = spec.uri.partition("://")[2]
    found = (one for one in grants if (one.bucket, one.permission) == (bucket, permission))
    return next((one.keys for one in found), None)


def lasts_seconds(max_seconds: float | None) -> int:
    """Return how long the credentials of a run last: as long as the run may, or as they can."""
    wanted = LONGEST_SECONDS if max_seconds is None else int(max_seconds) + MARGIN_SECONDS
    return max(SHORTEST_SECONDS, min(wanted, LONGEST_SECONDS))


class R2Tokens:
    """Cloudflare's API of temporary credentials, with the token of an environment."""

    def __init__(
        self,
        variables: Mapping[str, str],
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take the token.

        Raises:
            AccessError: there is none.
            UsageError: the address would send it in the clear.
        """
        self._token = variables.get(TOKEN_VARIABLE, "").strip()
        self._url = variables.get(URL_VARIABLE, "").strip().rstrip("/") or USUAL_URL
        self._clock, self._sleep = clock, sleep
        if not is_safe_address(self._url):
            raise UsageError(
                f"{URL_VARIABLE}: not an https address",
                hint=f"Unset it: {USUAL_URL} is the usual one.",
            )
        if not self._token or not self._token.isascii() or not self._token.isprintable():
            raise AccessError(
                f"remote_credentials=session: {TOKEN_VARIABLE} "
                + ("is not a token" if self._token else "is not set"),
                hint=f"Put the API token that the R2 keys belong to into {TOKEN_VARIABLE}; {_LEAVE_OUT}",
            )

    def make(
        self, grants: tuple[Grant, ...], parent: str, seconds: int
    ) -> tuple[dict[str, str], datetime]:
        """Return the variables of the credentials, and when they end.

        `parent`: id of the access key that the stores are read with here.

        Raises:
            AccessError: Cloudflare makes none.
        """
        ends = self._clock() + timedelta(seconds=seconds)
        variables: dict[str, str] = {}
        for grant in grants:
            made = self._made(grant, parent, seconds)
            names = "AWS" if grant.keys is None else grant.keys
            variables[f"{names}_ACCESS_KEY_ID"] = made["accessKeyId"]
            variables[f"{names}_SECRET_ACCESS_KEY"] = made["secretAccessKey"]
            variables[f"{names}_SESSION_TOKEN"] = made["sessionToken"]
        return variables, ends

    def _made(self, grant: Grant, parent: str, seconds: int) -> dict[str, str]:
        body: dict[str, Any] = {
            "bucket": grant.bucket, "parentAccessKeyId": parent, "permission": grant.permission,
            "ttlSeconds": seconds,
        }  # fmt: skip
        if grant.prefixes:
            body["prefixes"] = list(grant.prefixes)
        url = f"{self._url}/accounts/{grant.account}/r2/temp-access-credentials"
        status, text = self._answered(url, msgspec.json.encode(body))
        answer = _object_of(text)
        result = answer.get("result")
        names = ("accessKeyId", "secretAccessKey", "sessionToken")
        if 200 <= status < 300 and answer.get("success") is True and isinstance(result, dict):  # noqa: PLR2004 - HTTP's class of success
            made = {name: str(result.get(name) or "") for name in names}
            if all(made.values()):
                return made
            raise self._refused(grant, "its answer holds no credentials")
        raise self._refused(grant, f"{status}{self._said(answer)}")

    def _answered(self, url: str, data: bytes) -> tuple[int, bytes]:
        """Send it, again while it is refused for now or not answered: making one twice does no harm."""
        import urllib3

        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        timeout = urllib3.Timeout(connect=ANSWER_SECONDS / 2, read=ANSWER_SECONDS)
        reason = ""
        with urllib3.PoolManager() as pool:
            for number in range(TRIES):
                if number:
                    self._sleep(PAUSE_SECONDS * 2 ** (number - 1))
                try:
                    response = pool.request(
                        "POST", url, body=data, headers=headers, redirect=False, retries=False,
                        preload_content=False, timeout=timeout,
                    )  # fmt: skip
                    text = response.read(MOST_BYTES, decode_content=True)
                    response.close()
                except urllib3.exceptions.HTTPError as error:
                    cause = getattr(error, "reason", None) or error
                    reason = f"no answer ({type(cause).__name__})"
                    continue
                if response.status != TOO_MANY and response.status < SERVER_TROUBLE:
                    return response.status, text
                reason = str(response.status)
        raise AccessError(
            f"no session could be made for the run: {self._host}: {reason}, {TRIES} times",
            hint=f"Try again later, {_LEAVE_OUT}",
        )

    def _refused(self, grant: Grant, said: str) -> AccessError:
        return AccessError(
            f"no session could be made for the run: {self._host}: bucket {grant.bucket}: {said}",
            hint=f"{TOKEN_VARIABLE} must hold the API token that the R2 keys belong to, and it must be"
            f" allowed to {'write' if grant.permission == WRITE else 'read'} there; {_LEAVE_OUT}",
        )

    @property
    def _host(self) -> str:
        return urlsplit(self._url).netloc

    def _said(self, answer: Mapping[str, Any]) -> str:
        """Return the provider's own words; they could repeat what was sent."""
        errors = answer.get("errors")
        told = [
            f"{one.get('message')} ({one.get('code')})"
            for one in (errors if isinstance(errors, list) else ())
            if isinstance(one, dict) and one.get("message")
        ]
        text = "; ".join(told).replace(self._token, "***")[:TOLD_CHARACTERS]
        return f": {text}" if text else ""


def _object_of(text: bytes) -> dict[str, Any]:
    try:
        found = decode_json(text)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}
