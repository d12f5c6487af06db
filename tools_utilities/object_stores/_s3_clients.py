"""The clients of one S3 bucket in one process: boto3 for what must be exact, obstore for bodies.

Credentials, profile, region and endpoint come through boto3's own chain (environment, config
files, SSO, roles); obstore gets them from there. Making clients sends nothing.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from tools_utilities.errors import AccessError
from tools_utilities.object_store import StoreSpec
from tools_utilities.object_stores._process import clients_lock, is_forked, process_id
from tools_utilities.process_environment import environment_now
from tools_utilities.redaction import KNOWN

if TYPE_CHECKING:
    from botocore.credentials import Credentials
    from mypy_boto3_s3.client import S3Client
    from obstore.store import S3Store

READ_SECONDS = 10
CONNECT_SECONDS = 10
EXACT_SECONDS = 8
"""What the clients wait, for a connection and for an answer: a write has no other limit, and four silences stay
within 35 s."""
CONNECTIONS = 64
_AWS_HOST = re.compile(r"(\.amazonaws\.(com|com\.cn|eu)|\.api\.aws|\.amazonwebservices\.com\.cn)$")
# Nothing listens on the discard port of loopback: what is sent there goes nowhere.
_NOWHERE = "http://127.0.0.1:9"
_ODD_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def obstore_carries(key: str) -> bool:
    """Say whether obstore sends this key as it is; it drops, merges or refuses odd ones."""
    segments = key.split("/")
    odd = any(segment in {"", ".", ".."} for segment in segments)
    return not odd and not _ODD_CHARACTERS.search(key)


class S3Clients:
    """Lazily made clients; valid in the process that made them."""

    def __init__(self, spec: StoreSpec, bucket: str, region: str | None) -> None:
        import botocore.session

        self.pid = process_id()
        self._spec = spec
        self._bucket = bucket
        self._core = botocore.session.Session(profile=spec.profile)
        if spec.keys is not None:
            self._core.set_credentials(*_own_keys(spec.keys, environment_now()))
        self._exact: S3Client | None = None
        self._exact_lock = Lock()
        self.region: str | None = region or spec.region
        """What requests are signed for: boto3 finds out by itself where a bucket is."""
        self.proven = False
        """An exchange went well, so endpoint and region are right."""
        self.endpoint: str | None = None
        """The endpoint when it is not Amazon's own."""
        if spec.endpoint_url and not _is_amazon(spec.endpoint_url):
            self.endpoint = self.address = spec.endpoint_url or ""
            self.region = self.region or self._core.get_config_variable("region")
        else:
            self._exact = self._open_exact()
        self._credentials = None if spec.anonymous else _credentials(self._core)
        self._secrets: tuple[str, ...] = ()
        self.note_secrets()
        self.credential_error: Exception | None = None
        """Why obstore got no credentials the last time it asked."""
        self._fast: S3Store | None = None

    @property
    def exact(self) -> "S3Client":
        """Return boto3's client; making one takes a fifth of a second the first time."""
        if self._exact is None:
            with self._exact_lock:
                if self._exact is None:
                    self._exact = self._open_exact()
        return self._exact

    def _open_exact(self) -> "S3Client":
        import boto3

        models = _service_models(self._core.get_config_variable("data_path"))
        self._core.register_component("data_loader", models)
        session = boto3.session.Session(botocore_session=self._core)
        client = self._make_exact(session)
        if not _is_amazon(client.meta.endpoint_url) and not self._spec.endpoint_url:
            client.close()
            client = self._make_exact(session, path_style=True)
        self.address = client.meta.endpoint_url
        self.endpoint = None if _is_amazon(self.address) else self.address
        self.region = client.meta.region_name
        client.meta.events.register("before-sign.s3", self._note_region)
        return client

    def _make_exact(self, session: Any, *, path_style: bool = False) -> "S3Client":
        from botocore import UNSIGNED
        from botocore.config import Config

        rest: dict[str, Any] = {}
        if self._spec.anonymous:
            rest["signature_version"] = UNSIGNED
        if path_style or self._spec.endpoint_url:
            rest["s3"] = dict(_PATH_STYLE)
        config = Config(
            retries={"mode": "standard", "total_max_attempts": 1},
            connect_timeout=EXACT_SECONDS,
            read_timeout=EXACT_SECONDS,
            max_pool_connections=CONNECTIONS,
            # Other stores than Amazon's often know none of its newer checksum headers.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            **rest,
        )
        client: S3Client = session.client(
            "s3",
            endpoint_url=self._spec.endpoint_url,
            region_name=self.region,
            config=config,
        )
        return client

    def _note_region(self, request: Any, **_: object) -> None:
        self.note_secrets()  # before they are in a header that botocore may log
        region_name = request.context.get("signing", {}).get("region")
        if region_name and region_name != self.region:
            self.region, self._fast = region_name, None

    def secrets(self) -> tuple[str, ...]:
        """Return the secrets last used, to keep them out of messages."""
        return self._secrets

    def note_secrets(self) -> None:
        """Remember the secrets in use now, without refreshing anything."""
        held = self._credentials
        names = (
            ("_secret_key", "_token") if hasattr(held, "_secret_key") else ("secret_key", "token")
        )
        found = (getattr(held, name, None) for name in names)
        self._secrets = tuple(secret for secret in found if secret)
        KNOWN.add(*self._secrets)

    def fast(self, key: str, *, listing: bool = False) -> "S3Store | None":
        """Return obstore's client where it may be used for this key.

        A `listing` need not wait for boto3 at a store that is not Amazon's: that is one server,
        and whatever goes wrong boto3 lists again and explains.
        """
        may_begin = self.proven or (listing and self._stays_there())
        if not may_begin or is_forked() or not obstore_carries(key):
            return None
        if self._credentials is None and not self._spec.anonymous:
            return None
        if self._fast is None:
            with clients_lock():
                if self._fast is None:
                    self._fast = self._make_fast()
        return self._fast

    def _make_fast(self) -> "S3Store":
        from obstore.store import S3Store

        endpoint = self.address
        access: dict[str, Any] = {"skip_signature": True}
        if self._credentials is not None:
            access = {"skip_signature": False, "credential_provider": self._provider()}
        return S3Store(
            self._bucket,
            endpoint=endpoint,
            region=self.region or "us-east-1",
            virtual_hosted_style_request=False,
            request_payer=self._spec.requester_pays,
            client_options=self._http_options(endpoint),  # type: ignore[arg-type]  # built by parts
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
            **access,
        )

    def _http_options(self, endpoint: str) -> dict[str, Any]:
        parts = urlsplit(endpoint)
        options: dict[str, Any] = {
            "allow_http": parts.scheme == "http",
            "connect_timeout": timedelta(seconds=EXACT_SECONDS),
            "read_timeout": timedelta(seconds=EXACT_SECONDS),
            "timeout": timedelta(days=1),
            "pool_max_idle_per_host": str(CONNECTIONS),
        }
        bundle = self._core.get_config_variable("ca_bundle")
        if isinstance(bundle, str) and Path(bundle).is_file():
            options["root_certificate"] = Path(bundle).read_bytes()
        if self._stays_there():
            # obstore follows redirects and cannot be told not to: a store that is not Amazon's
            # must never send us, and our session token, to another host.
            options |= {"proxy_url": _NOWHERE, "proxy_excludes": parts.hostname or ""}
        return options

    def _stays_there(self) -> bool:
        """Say whether obstore can be kept from following a redirect to another host."""
        return self.endpoint is not None and urlsplit(self.address).scheme not in getproxies()

    def _provider(self) -> Callable[[], dict[str, Any]]:
        credentials = self._credentials

        def provide() -> dict[str, Any]:
            if credentials is None:
                raise LookupError("no credentials")
            try:
                frozen = credentials.get_frozen_credentials()
            except Exception as error:  # obstore would wrap it into text of its own
                self.credential_error = error
                raise
            # botocore keeps the expiry to itself; without it, the keys are fixed ones.
            KNOWN.add(frozen.secret_key, frozen.token)
            expires: datetime | None = getattr(credentials, "_expiry_time", None)
            return {
                "access_key_id": frozen.access_key,
                "secret_access_key": frozen.secret_key,
                "token": frozen.token,
                "expires_at": expires.astimezone(UTC) if expires else None,
            }

        return provide

    def close(self) -> None:
        """Close the idle connections."""
        if self._exact is not None:
            self._exact.close()


def _is_amazon(url: str | None) -> bool:
    return bool(_AWS_HOST.search(urlsplit(url or "").hostname or ""))


_PATH_STYLE = {"addressing_style": "path"}


@cache
def _service_models(data_path: str | None) -> Any:
    """Return botocore's reader of service models; sharing it makes further clients cost a tenth."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


def _own_keys(names: str, variables: Mapping[str, str]) -> tuple[str, str, str | None]:
    """Return access key, secret key and session token of a store that has its own variables.

    Raises:
        AccessError: they are not there.
    """
    access, secret = (
        variables.get(f"{names}_{part}") for part in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
    )
    if not access or not secret:
        raise AccessError(
            f"{names}_ACCESS_KEY_ID and {names}_SECRET_ACCESS_KEY are not set",
            hint="They are sent with a run that has several credentials; start it anew from there.",
        )
    return access, secret, variables.get(f"{names}_SESSION_TOKEN")


def _credentials(core: Any) -> "Credentials | None":
    found: Credentials | None = core.get_credentials()
    return found


class ClientSlot:
    """Holds the clients of a store: made on first use, and again after a fork or on request."""

    def __init__(self, spec: StoreSpec, bucket: str) -> None:
        self._spec = spec
        self._bucket = bucket
        self._region: str | None = None
        self._clients: S3Clients | None = None

    def get(self) -> S3Clients:
        """Return this process's clients."""
        clients = self._clients
        if clients is not None and clients.pid == process_id():
            return clients
        with clients_lock():
            clients = self._clients
            if clients is None or clients.pid != process_id():
                clients = self._clients = S3Clients(self._spec, self._bucket, self._region)
            return clients

    def renew(self, old: S3Clients, region: str | None = None) -> S3Clients:
        """Return clients with credentials read anew (and another region), once for all threads."""
        with clients_lock():
            if self._clients is old:
                self._region = region or self._region
                self._clients = S3Clients(self._spec, self._bucket, self._region)
                self._clients.proven = region is None and old.proven
            current = self._clients
        return current if current is not None else self.get()
