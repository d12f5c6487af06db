"""What another machine needs to read the stores of a job: variables to send, and specs without profiles.

Credentials are resolved here, as the stores resolve them, and sent as variables over the connection;
config files and their folders are never copied. What is long-lived is named, so that whoever sends
it knows; what ends before the run does is warned of.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from brain.ml.training_job import TrainingJob
from resource_manager.remote_proof import prove_readable
from resource_manager.remote_r2 import Grant, R2Tokens, grants_of, lasts_seconds
from resource_manager.remote_session import make_session
from tools_utilities.errors import AccessError, UsageError
from tools_utilities.json_text import decode_json
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.process_environment import environment_now

S3_SCHEMES = ("s3", "r2")
AZURE = re.compile(r"AZURE_(STORAGE_\w+|CLIENT_ID|CLIENT_SECRET|TENANT_ID)")
GOOGLE_FILE, GOOGLE_KEY = "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT_KEY"
_MACHINES_OWN = "Give the machine credentials of its own there, and say remote_credentials=none."


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """Variables for a run on another machine; never shown, logged or written here."""

    variables: dict[str, str]
    long_lived: tuple[str, ...] = ()
    """Names of those that do not end by themselves."""
    expires_at: datetime | None = None
    """When the first of them ends."""
    grants: tuple[Grant, ...] = ()
    """Credentials of R2 that were made for the run, instead of the keys."""

    def __repr__(self) -> str:
        return f"Sent({', '.join(sorted(self.variables))})"


def specs_of(job: TrainingJob) -> list[StoreSpec]:
    """Return the stores that a job reads or writes, each once."""
    found = [source.store for source in (*job.train, *job.val)]
    found += [job.checkpoints.store] if job.checkpoints is not None else []
    return list(dict.fromkeys(found))


def sent_variables(
    job: TrainingJob,
    environ: Callable[[], Mapping[str, str]] = environment_now,
    prove: Callable[..., None] = prove_readable,
    within_seconds: float | None = None,
) -> Sent:
    """Return the variables that the run on the job's machine is given.

    `prove`: tries credentials that were made for the run, as `prove_readable` does. `within_seconds`: when
    its machine ends it at the latest; a session need not last longer.

    Raises:
        AccessError: there are no credentials here, or they have expired.
        UsageError: two stores need different ones, a named variable is not set, or what there is
            cannot be sent.
    """
    remote, here = job.remote, environ()
    if remote is None:
        return Sent(variables={})
    missing = [name for name in remote.variables if name not in here]
    if missing:
        raise UsageError(
            f"remote_env: {', '.join(missing)} not set here",
            hint="Set it, or leave it out of remote_env.",
        )
    variables = {name: here[name] for name in remote.variables}
    if remote.credentials == "none":
        return Sent(variables=variables)
    is_session = remote.credentials == "session"
    limits = [limit for limit in (job.max_seconds, within_seconds) if limit is not None]
    timed = msgspec.structs.replace(job, max_seconds=min(limits, default=None))
    sent = sent_for(
        specs_of(job),
        here,
        lambda signed, s3: _proven(timed, signed, s3, here, prove) if is_session else s3,
    )
    return msgspec.structs.replace(sent, variables={**sent.variables, **variables})


def sent_for(
    specs: Iterable[StoreSpec],
    here: Mapping[str, str],
    instead: Callable[[list[StoreSpec], Sent], Sent] = lambda _signed, s3: s3,
) -> Sent:
    """Return the variables that stores are read and written with on another machine.

    `instead`: is given the stores that sign, and what S3 needs; returns what is sent for that.

    Raises:
        AccessError: there are no credentials here, or they have expired.
        UsageError: two stores need different ones, or what there is cannot be sent.
    """
    signed = [spec for spec in specs if not spec.anonymous]
    found = instead(signed, _s3([spec for spec in signed if _scheme(spec) in S3_SCHEMES]))
    others: dict[str, str] = {}
    if any(_scheme(spec) == "az" for spec in signed):
        others |= _azure(here)
    if any(_scheme(spec) == "gs" for spec in signed):
        others |= _google(here)
    secret = ("KEY", "TOKEN", "SECRET")
    return Sent(
        variables={**found.variables, **others},
        long_lived=(
            *found.long_lived,
            *(name for name in others if any(word in name for word in secret)),
        ),
        expires_at=found.expires_at,
        grants=found.grants,
    )


def travelling_spec(spec: StoreSpec) -> StoreSpec:
    """Return a spec that means the same store on a machine without the profiles of this one."""
    if _scheme(spec) not in S3_SCHEMES:
        return spec
    store: Any = open_store(spec)
    asked, answered = store.regions
    return msgspec.structs.replace(
        spec,
        profile=None,
        endpoint_url=spec.endpoint_url or store.endpoint_url,
        region=spec.region or asked or answered,
    )


def endpoint_of(spec: StoreSpec) -> str | None:
    """Return HOST:PORT where a store's own endpoint is; None for a provider's usual one."""
    parts = urlsplit(spec.endpoint_url or "")
    if _scheme(spec) in ("http", "https"):
        parts = urlsplit(spec.uri)
    if parts.hostname is None:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or (80 if parts.scheme == 'http' else 443)}"


def expiry_warning(sent: Sent, max_seconds: float | None, now: datetime | None = None) -> str:
    """Return what to say of credentials that end before the run may; empty: nothing."""
    if sent.expires_at is None:
        return ""
    left = (sent.expires_at - (now or datetime.now(UTC))).total_seconds()
    if max_seconds is not None and left > max_seconds:
        return ""
    longest = (
        "the run has no time limit" if max_seconds is None else f"it may take {max_seconds:g} s"
    )
    return (
        f"the credentials that are sent end in {max(0, left) / 60:.0f} minutes, and {longest};"
        " after that it can read nothing, and resumes from its last checkpoint with new ones"
    )


def _scheme(spec: StoreSpec) -> str:
    return spec.uri.partition("://")[0]


def _s3(specs: list[StoreSpec]) -> Sent:
    if not specs:
        return Sent(variables={})
    found: dict[tuple[str, str, str | None], Any] = {}
    for profile in sorted({spec.profile or "" for spec in specs}):
        credentials, frozen = _resolved(profile or None)
        found[(frozen.access_key, frozen.secret_key, frozen.token)] = credentials
    if len(found) > 1:
        raise UsageError(
            "the stores of this run need different AWS credentials, and one run is sent one set",
            hint=f"Copy the data together, or: {_MACHINES_OWN}",
        )
    ((access, secret, token), credentials) = next(iter(found.items()))
    variables = {"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret}
    if token:
        return Sent(
            variables={**variables, "AWS_SESSION_TOKEN": token},
            expires_at=getattr(credentials, "_expiry_time", None),  # botocore keeps it to itself
        )
    return Sent(variables=variables, long_lived=tuple(variables))


def _proven(
    job: TrainingJob,
    signed: list[StoreSpec],
    found: Sent,
    here: Mapping[str, str],
    prove: Callable[..., None],
) -> Sent:
    """Return a session that has read the run's data."""
    sent = _session(job, signed, found, here)
    if sent is not found:
        s3 = [spec for spec in signed if _scheme(spec) in S3_SCHEMES]
        prove(job, sent.variables, sent.grants, {spec: travelling_spec(spec) for spec in s3})
    return sent


def _session(
    job: TrainingJob, signed: list[StoreSpec], found: Sent, here: Mapping[str, str]
) -> Sent:
    """Return a session that ends by itself, instead of keys that do not; a session stays what it is."""
    if not found.long_lived and found.variables:
        return found
    if found.variables and (grants := grants_of(job, travelling_spec)):
        parent = found.variables["AWS_ACCESS_KEY_ID"]
        made, ends = R2Tokens(here).make(grants, parent, lasts_seconds(job.max_seconds))
        return Sent(variables=made, expires_at=ends, grants=grants)
    if not signed:
        return found
    answer = make_session(job, signed[0].profile, signed[0].region)
    return Sent(
        variables={
            "AWS_ACCESS_KEY_ID": answer["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": answer["SecretAccessKey"],
            "AWS_SESSION_TOKEN": answer["SessionToken"],
        },
        expires_at=answer["Expiration"],
    )


def _resolved(profile: str | None) -> tuple[Any, Any]:
    import botocore.session
    from botocore.exceptions import BotoCoreError

    try:
        credentials = botocore.session.Session(profile=profile).get_credentials()
        frozen = None if credentials is None else credentials.get_frozen_credentials()
    except BotoCoreError as error:
        raise AccessError(
            f"the AWS credentials to send cannot be had: {error}", hint="Sign in again."
        ) from error
    if frozen is None or not frozen.access_key or not frozen.secret_key:
        raise AccessError("there are no AWS credentials here to send", hint=_MACHINES_OWN)
    return credentials, frozen


def _azure(here: Mapping[str, str]) -> dict[str, str]:
    found = {name: value for name, value in here.items() if AZURE.fullmatch(name)}
    if not any("KEY" in name or "TOKEN" in name or "SECRET" in name for name in found):
        raise AccessError("there is no Azure key, token or secret here to send", hint=_MACHINES_OWN)
    return found


def _google(here: Mapping[str, str]) -> dict[str, str]:
    if here.get(GOOGLE_KEY):
        return {GOOGLE_KEY: here[GOOGLE_KEY]}
    path = Path(here.get(GOOGLE_FILE) or "/nonexistent")
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    try:
        kind = decode_json(text or "{}").get("type")
    except (msgspec.DecodeError, AttributeError):
        kind = None
    if kind != "service_account":
        raise AccessError(
            "there is no key of a Google service account here to send", hint=_MACHINES_OWN
        )
    return {GOOGLE_KEY: text}
