"""Temporary credentials of R2 for one pipeline: they end by themselves and reach its own folders alone.

`vast.credentials: session`. One credential is of one bucket and has one permission for all its folders, so
source and output must be in one bucket, or the source no S3 store at all; it may write where it reads then.
"""

from collections.abc import Mapping

import msgspec

from resource_manager.bridge_order import RentedPipeline
from resource_manager.remote_credentials import S3_SCHEMES, Sent
from resource_manager.remote_r2 import WRITE, Grant, R2Tokens, account_of, lasts_seconds
from tools_utilities.bridge.bridge_settings import BridgeSettings
from tools_utilities.errors import UsageError
from tools_utilities.object_store import StoreSpec

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_SEND = "Leave vast.credentials out: then the keys themselves are sent."


def session_grant(settings: BridgeSettings) -> Grant:
    """Return the credential that a pipeline needs, by the settings that travel.

    Raises:
        UsageError: its output is not R2's, or its source is in another bucket.
    """
    r2, source = settings.r2, settings.pipeline.input_uri
    account = None
    if r2 is not None:
        spec = StoreSpec(uri=f"s3://{r2.bucket}", endpoint_url=r2.endpoint)
        account = account_of(spec)
    if r2 is None or account is None:
        raise UsageError(
            "vast.credentials=session: the output is not in R2, which makes such credentials",
            hint=_SEND,
        )
    folder = r2.prefix.strip("/")
    prefixes = [f"{folder}/" if folder else ""]
    scheme, _, rest = source.partition("://")
    if scheme in S3_SCHEMES:
        bucket, _, path = rest.partition("/")
        params = settings.pipeline.source_options.transport_params
        where = account_of(StoreSpec(uri=f"s3://{bucket}", endpoint_url=params.get("endpoint_url")))
        if (where, bucket) != (account, r2.bucket):
            raise UsageError(
                f"vast.credentials=session: {source} is not in the bucket of the output, and one"
                " credential is of one bucket",
                hint=_SEND,
            )
        prefixes.append(path.rstrip("/"))
    return Grant(
        account=account,
        bucket=r2.bucket,
        permission=WRITE,
        prefixes=() if "" in prefixes else tuple(dict.fromkeys(prefixes)),
        keys=None,
    )


def with_session(rented: RentedPipeline, here: Mapping[str, str]) -> RentedPipeline:
    """Return a pipeline that is sent credentials made for it now, instead of the keys.

    Raises:
        AccessError: none can be made.
    """
    sent, grant = rented.sent, session_grant(rented.order.settings)
    parent = sent.variables[_KEYS[0]]
    made, ends = R2Tokens(here).make((grant,), parent, lasts_seconds(rented.max_seconds))
    kept = {name: value for name, value in sent.variables.items() if name not in _KEYS}
    session = Sent(
        variables={**kept, **made},
        long_lived=tuple(name for name in sent.long_lived if name not in _KEYS),
        expires_at=ends,
    )
    return msgspec.structs.replace(rented, sent=session)
