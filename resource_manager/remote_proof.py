"""That the credentials made for a run can list and read its data, tried here before anything is started.

Those that are sent as they are have listed the data and decoded its first records already; a session is
another credential, and what it may do shows only when it is used. Two small requests a source.
"""

from collections.abc import Mapping
from typing import Any

from brain.ml.training_job import DataSource, TrainingJob
from resource_manager.remote_r2 import READ, Grant, keys_of
from tools_utilities.errors import AccessError
from tools_utilities.object_store import StoreSpec

PARTS = ("access_key_id", "secret_access_key", "session_token")
CONNECT_SECONDS, READ_SECONDS, TRIES = 10, 20, 3


def prove_readable(
    job: TrainingJob,
    variables: Mapping[str, str],
    grants: tuple[Grant, ...],
    specs: Mapping[StoreSpec, StoreSpec],
) -> None:
    """List each source and read a byte of it with the credentials in `variables`.

    `specs`: each store as another machine reaches it.

    Raises:
        AccessError: they cannot.
    """
    for source in dict.fromkeys((*job.train, *job.val)):
        if source.store in specs:
            names = keys_of(grants, source.store, READ) or "AWS"
            keys = {part: variables.get(f"{names}_{part.upper()}") for part in PARTS}
            _prove(source, specs[source.store], keys)


def _prove(source: DataSource, spec: StoreSpec, keys: Mapping[str, str | None]) -> None:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    config = Config(
        retries={"mode": "standard", "total_max_attempts": TRIES},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        s3={"addressing_style": "path"} if spec.endpoint_url else {},
    )
    given: Any = {f"aws_{part}": key for part, key in keys.items()}
    session = boto3.session.Session(region_name=spec.region or "us-east-1", **given)
    client: Any = session.client("s3", endpoint_url=spec.endpoint_url, config=config)
    bucket = {"Bucket": spec.uri.partition("://")[2]}
    bucket |= {"RequestPayer": "requester"} if spec.requester_pays else {}
    try:
        page = client.list_objects_v2(Prefix=source.prefix, MaxKeys=1, **bucket)
        for one in page.get("Contents", ())[:1]:
            wanted = {"Range": "bytes=0-0"} if one["Size"] else {}
            client.get_object(Key=one["Key"], **wanted, **bucket)["Body"].close()
    except (ClientError, BotoCoreError) as error:
        raise AccessError(
            f"the session that was made for the run cannot read {spec.uri}/{source.prefix}: {error}",
            hint="What it may do is no more than its keys may: they must list and get there."
            " Or leave remote_credentials out.",
        ) from error
    finally:
        client.close()
