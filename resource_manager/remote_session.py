"""Credentials made for one run: a federation session of AWS, which ends by itself and may do only what the run does.

`remote_credentials=session`. AWS makes them of a user's long-lived keys (sts:GetFederationToken); a role's
session makes none, and ends by itself anyway.
"""

from typing import Any

import msgspec

from brain.ml.training_job import TrainingJob
from tools_utilities.errors import AccessError, UsageError

SHORTEST_SECONDS, LONGEST_SECONDS = 900, 129_600
"""What AWS allows."""
MARGIN_SECONDS = 3600
"""For the launch before a run and the last save behind its limit."""
READ: tuple[str, ...] = ("s3:GetObject",)
WRITE: tuple[str, ...] = (*READ, "s3:PutObject", "s3:DeleteObject")


def session_policy(job: TrainingJob) -> dict[str, Any]:
    """Return what the run may do: read its data, list around it, write its checkpoints. Pure."""
    reads = [(source.store.uri, source.prefix, READ) for source in (*job.train, *job.val)]
    if job.checkpoints is not None:
        reads.append((job.checkpoints.store.uri, job.checkpoints.prefix, WRITE))
    statements: list[dict[str, Any]] = []
    for uri, prefix, actions in dict.fromkeys(reads):
        bucket = f"arn:aws:s3:::{_bucket(uri)}"
        folder = prefix[: prefix.rfind("/") + 1]
        statements += [
            _allow(actions, f"{bucket}/{prefix}*"),
            # A listing of `d/train-` may ask for the folder it is in.
            _allow(("s3:ListBucket",), bucket) | {"Condition": _below(folder)},
        ]
    return {"Version": "2012-10-17", "Statement": statements}


def session_seconds(max_seconds: float | None) -> int:
    """Return how long the session of a run lasts: as long as the run may, or as AWS lets it."""
    wanted = LONGEST_SECONDS if max_seconds is None else int(max_seconds) + MARGIN_SECONDS
    return max(SHORTEST_SECONDS, min(wanted, LONGEST_SECONDS))


def make_session(job: TrainingJob, profile: str | None, region: str | None) -> dict[str, Any]:
    """Return AWS's answer: AccessKeyId, SecretAccessKey, SessionToken, Expiration.

    Raises:
        AccessError: these credentials may not make one.
        UsageError: the store is not Amazon's.
    """
    import botocore.session
    from botocore.exceptions import BotoCoreError, ClientError

    stores = [source.store for source in (*job.train, *job.val)]
    other = next((spec for spec in stores if spec.endpoint_url or spec.uri[:5] != "s3://"), None)
    if other is not None:
        raise UsageError(
            f"remote_credentials=session: {other.uri} is not Amazon's, which makes sessions",
            hint="Leave it out: the credentials themselves are sent. Or remote_credentials=none.",
        )
    session = botocore.session.Session(profile=profile)
    client: Any = session.create_client("sts", region_name=region or "us-east-1")
    try:
        answer = client.get_federation_token(
            Name=_session_name(job.name),
            Policy=msgspec.json.encode(session_policy(job)).decode(),
            DurationSeconds=session_seconds(job.max_seconds),
        )
    except (ClientError, BotoCoreError) as error:
        raise AccessError(
            f"no session could be made for the run: {error}",
            hint="It takes a user's keys that allow sts:GetFederationToken; or leave"
            " remote_credentials out.",
        ) from error
    finally:
        client.close()
    found: dict[str, Any] = answer["Credentials"]
    return found


def _allow(actions: tuple[str, ...], resource: str) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": list(actions), "Resource": resource}


def _below(folder: str) -> dict[str, Any]:
    return {"StringLike": {"s3:prefix": [f"{folder}*"]}}


def _bucket(uri: str) -> str:
    return uri.partition("://")[2]


def _session_name(run: str) -> str:
    kept = "".join(char for char in run if char.isascii() and (char.isalnum() or char in "-_."))
    return f"quark-{kept}"[:32]
