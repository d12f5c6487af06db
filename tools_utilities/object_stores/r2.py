"""Cloudflare R2: S3 at the endpoint of an account.

`r2://bucket` needs the endpoint, from the store's settings or through boto3's own chain
(AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, `endpoint_url` of a profile).
"""

from tools_utilities.errors import UsageError
from tools_utilities.object_store import ObjectStore, StoreScheme, StoreSpec
from tools_utilities.object_stores.s3 import S3Store


class _R2Scheme:
    name = "r2"

    def open(self, spec: StoreSpec) -> ObjectStore:
        """Return the store of a bucket; refuses to take Amazon for R2."""
        store = S3Store(spec)
        if spec.endpoint_url is None and store.endpoint_url is None:
            raise UsageError(
                f"{spec.uri}: R2 needs the endpoint of your account",
                hint="Set endpoint_url=https://<account id>.r2.cloudflarestorage.com "
                "(or AWS_ENDPOINT_URL_S3).",
            )
        return store


STORE_SCHEME: StoreScheme = _R2Scheme()
