"""One exchange with S3: which clients, what its failure means, when it is worth asking again."""

import random
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from tools_utilities.errors import AccessError, QuarkError, UsageError
from tools_utilities.object_store import StoreSpec
from tools_utilities.object_stores import _s3_clients
from tools_utilities.object_stores._deadline import within
from tools_utilities.object_stores._failures import Asked, Failure, explain
from tools_utilities.object_stores._s3_clients import ClientSlot, S3Clients
from tools_utilities.object_stores._s3_failures import (
    is_still_expired,
    of_botocore_error,
    of_client_error,
    of_obstore_error,
)

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

READ_TRIES = 4
_LONGEST_PAUSE_SECONDS = 1.0
# In times that one answer may take to begin.
WHOLE_ANSWER = 4.0
_ALL_ANSWERS = 11.0
_LAST_TRY = 0.4
_SILENT_SHARE = 0.75
"""Of the time for the first byte: boto3's own limit strikes before it."""
_ABSENT = 404
_ANSWERS = {404, 409, 412, 416}
_BAD_REQUEST, _FORBIDDEN = 400, 403
_DENIED = frozenset({"AccessDenied", "Forbidden", "403", ""})
_BESIDE = 20
"""Names that may stand before a key itself in a store that does not list in byte order."""
_Result = TypeVar("_Result")


class _RefusedError(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__()
        self.failure = failure


class _Waiting:
    """How long the next try of a request may take, and how long to pause before it."""

    def __init__(self, answer_seconds: float, began: float) -> None:
        self._answer = answer_seconds
        self._began = began
        self._silent = 0
        """Tries that ended when the time for the first byte did, each a tenth shorter than the last."""
        self._note(time.monotonic() - began)

    @property
    def num_silent(self) -> int:
        """Tries so far that nothing came of."""
        return self._silent

    def _note(self, seconds: float) -> bool:
        silent = _SILENT_SHARE * self._share() <= seconds < 2 * self._answer
        self._silent += silent
        return silent

    def _share(self) -> float:
        return float(self._answer * (1 - 0.1 * self._silent))

    def seconds(self) -> float:
        """Return the limit of a try that begins now."""
        self._tried = time.monotonic()
        if self._silent:
            return self._share()
        left = self._answer * _ALL_ANSWERS - (self._tried - self._began)
        return float(max(_LAST_TRY * self._answer, min(WHOLE_ANSWER * self._answer, left)))

    def pause(self, attempt: int) -> float:
        """Return how long to wait after a try; a time-out was a pause already."""
        if self._note(time.monotonic() - self._tried):
            return 0.1
        return min(random.uniform(0.05, 0.15) * 3.0**attempt, _LONGEST_PAUSE_SECONDS)  # noqa: S311 - spreads load


class S3Calls:
    """Sends the requests of one store."""

    def __init__(self, spec: StoreSpec, bucket: str) -> None:
        self._spec = spec
        self._bucket = bucket
        self._slot = ClientSlot(spec, bucket)
        self._bucket_seen = False
        self._region: str | None = None

    def clients(self) -> S3Clients:
        """Return this process's clients; sends nothing."""
        from botocore.exceptions import BotoCoreError

        try:
            clients = self._slot.get()
        except (BotoCoreError, ValueError) as error:
            found = of_botocore_error(error, self._spec.uri)
            raise self._explained(found, self._asked("list", "", None)) from None
        self._region = self._region or clients.region
        return clients

    def regions(self) -> tuple[str | None, str | None]:
        """Return the region that was asked for and the one that the bucket turned out to be in."""
        clients = self.clients()
        return self._region, clients.region

    def where(self, clients: S3Clients | None) -> str:
        """Name the store in words."""
        endpoint = clients.endpoint if clients else self._spec.endpoint_url
        host = urlsplit(endpoint).netloc.rpartition("@")[2] if endpoint else ""
        return self._spec.uri + (f" at {host}" if host else "")

    def retried(
        self,
        action: str,
        key: str,
        ask: Callable[[S3Clients], _Result],
        *,
        since: float | None = None,
    ) -> _Result:
        """Ask up to four times; for requests that change nothing and have no body.

        `since`: when somebody began to wait for this, by the monotonic clock. A silent server is
        given up within 3.5 times what one answer may take to begin, one that drips within 12 times.
        """
        waiting = _Waiting(_s3_clients.READ_SECONDS, time.monotonic() if since is None else since)
        # A silence that somebody met before this was one of the tries.
        for attempt in range(1, READ_TRIES - waiting.num_silent):
            try:
                return self._asked_once(action, key, ask, waiting)
            except QuarkError as error:
                if not error.detail.get("transient"):
                    raise
            time.sleep(waiting.pause(attempt))
        return self._asked_once(action, key, ask, waiting)

    def _asked_once(
        self, action: str, key: str, ask: Callable[[S3Clients], _Result], waiting: "_Waiting"
    ) -> _Result:
        try:
            return within(waiting.seconds(), lambda: self.once(action, key, ask))
        except TimeoutError as error:
            failure = Failure(None, message=str(error))
            raise explain(failure, self._asked(action, key, self.clients())) from None

    def once(
        self,
        action: str,
        key: str,
        ask: Callable[[S3Clients], _Result],
        *,
        conditional: bool = False,
    ) -> _Result:
        """Ask once; once more with new clients when credentials expired or the region was wrong."""
        clients = self.clients()
        try:
            return self._attempt(clients, ask)
        except _RefusedError as refused:
            failure = refused.failure
        better = self._better(clients, failure, action)
        if better is not None:
            clients = better
            try:
                return self._attempt(clients, ask)
            except _RefusedError as refused:
                failure = refused.failure
        if failure.status == _FORBIDDEN and action in ("head", "get"):
            failure = self._hidden(clients, key, failure)
        if action == "head" and failure.status == _ABSENT and not self._bucket_seen:
            self._look_for_bucket(clients, key)
        # What the clients raised may quote headers: its text is taken, escaped, and no more.
        raise self._explained(
            failure, self._asked(action, key, clients, conditional=conditional)
        ) from None

    def _attempt(self, clients: S3Clients, ask: Callable[[S3Clients], _Result]) -> _Result:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        try:
            result = ask(clients)
        except ClientError as error:
            failure = self._of_client(error, clients)
        except UnicodeEncodeError:
            raise UsageError(
                f"{self.where(clients)}: a key that is not UTF-8 text cannot be asked for",
                hint="Keys are UTF-8 in every store; check where this one comes from.",
            ) from None
        except (BotoCoreError, ResponseParserError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not is_still_expired(error):
                raise
            clients.note_secrets()
            found = of_botocore_error(error, self.where(clients))
            if isinstance(found, QuarkError):
                raise found from None
            failure = found
        except _obstore_errors() as error:
            if clients.credential_error is not None:
                found = of_botocore_error(clients.credential_error, self.where(clients))
                clients.credential_error = None
                raise self._explained(found, self._asked("list", "", clients)) from None
            failure = of_obstore_error(error)
        else:
            clients.proven = self._bucket_seen = True
            return result
        clients.note_secrets()
        if failure.status in _ANSWERS and failure.code != "NoSuchBucket":
            clients.proven = True
        raise _RefusedError(failure)

    def _of_client(self, error: "ClientError", clients: S3Clients) -> Failure:
        if error.operation_name.startswith(("Assume", "GetRole", "CreateToken")):
            raise AccessError(
                f"{self.where(clients)}: no credentials: {error.operation_name} was refused "
                f"({error.response.get('Error', {}).get('Code', '')})",
                hint="Check the role or the login of this profile.",
                phase="sign",
                code=str(error.response.get("Error", {}).get("Code", "")),
            ) from None
        return of_client_error(error)

    def _better(self, clients: S3Clients, failure: Failure, action: str) -> S3Clients | None:
        """Return clients that may do better, or None."""
        silent = action == "head" and failure.status == _BAD_REQUEST and not failure.message
        if (failure.expired or silent) and not self._spec.anonymous:
            return self._slot.renew(clients)
        if failure.moved:
            region = failure.region or failure.fields.get("Region") or self._bucket_region(clients)
            if region and region != clients.region:
                return self._slot.renew(clients, region)
        return None

    def _bucket_region(self, clients: S3Clients) -> str | None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            found: Any = clients.exact.head_bucket(Bucket=self._bucket)
        except ClientError as error:
            return of_client_error(error).region
        except BotoCoreError:
            return None  # the first failure says more
        region: str | None = found.get("BucketRegion")
        return region

    def _hidden(self, clients: S3Clients, key: str, failure: Failure) -> Failure:
        """Return an absence where a refusal hid one: the key's own listing, if it is allowed, tells.

        S3 answers 403 for what is not there where somebody may not list the bucket, which is also who
        may list below one prefix alone (a session's policy): the condition of that is not met by a HEAD.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        if failure.code not in _DENIED:
            return failure
        payer: Any = {"RequestPayer": "requester"} if self._spec.requester_pays else {}
        try:
            page = clients.exact.list_objects_v2(
                Bucket=self._bucket, Prefix=key, MaxKeys=_BESIDE, **payer
            )
        except (ClientError, BotoCoreError):
            return failure
        names = [one["Key"] for one in page.get("Contents", ())]
        if key in names or page.get("IsTruncated"):
            return failure
        return Failure(_ABSENT, "NoSuchKey", "The specified key does not exist.")

    def _look_for_bucket(self, clients: S3Clients, key: str) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            clients.exact.head_bucket(Bucket=self._bucket)
        except ClientError as error:
            if of_client_error(error).status == _ABSENT:
                asked = self._asked("head", key, clients)
                raise explain(Failure(_ABSENT, "NoSuchBucket"), asked) from None
        except BotoCoreError:
            return  # the answer about the object stands
        self._bucket_seen = True

    def _asked(
        self, action: str, key: str, clients: S3Clients | None, *, conditional: bool = False
    ) -> Asked:
        return Asked(
            action=action,
            key=key,
            bucket=self._bucket,
            where=self.where(clients),
            region=self._region,
            conditional=conditional,
            secrets=clients.secrets() if clients else (),
        )

    def _explained(self, found: Failure | QuarkError, asked: Asked) -> QuarkError:
        return found if isinstance(found, QuarkError) else explain(found, asked)


def _obstore_errors() -> tuple[type[BaseException], ...]:
    # Only where obstore was used: importing it here would make a forked child's life harder.
    if "obstore" not in sys.modules:
        return ()
    from obstore.exceptions import BaseError

    return (BaseError, FileNotFoundError)
