"""Google Cloud Storage: `gs://bucket`. Conditional puts compare generations.

Credentials are Google's application default ones (a key file, `gcloud auth application-default
login`, or the machine's own).
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tools_utilities.object_store import ObjectStore, StoreScheme, StoreSpec
from tools_utilities.object_stores._obstore_store import ObstoreStore, Provider, http_options

if TYPE_CHECKING:
    from obstore.store import GCSStore


def _make(spec: StoreSpec, bucket: str) -> "GCSStore":
    from obstore.store import GCSStore

    options: dict[str, Any] = {}
    if spec.endpoint_url:
        options["base_url"] = spec.endpoint_url
    if spec.anonymous:
        options["skip_signature"] = True
    return GCSStore(
        bucket,
        client_options=http_options(spec),
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
        **options,
    )


_PROVIDER = Provider(
    name="Google Cloud Storage",
    make=_make,
    by_generation=True,
    sign_in="Run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS.",
    hosts=("googleapis.com",),
    own_variable="GOOGLE_BASE_URL",
)


class _GoogleScheme:
    name = "gs"

    def open(self, spec: StoreSpec) -> ObjectStore:
        """Return the store of a bucket."""
        return ObstoreStore(spec, _PROVIDER)


STORE_SCHEME: StoreScheme = _GoogleScheme()
