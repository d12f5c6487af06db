"""Azure Blob Storage: `az://container` of the account in AZURE_STORAGE_ACCOUNT_NAME.

Credentials are Azure's own variables (a key, a token, a service principal) or the `az` login.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tools_utilities.object_store import ObjectStore, StoreScheme, StoreSpec
from tools_utilities.object_stores._obstore_store import ObstoreStore, Provider, http_options
from tools_utilities.process_environment import environment_now

if TYPE_CHECKING:
    from obstore.store import AzureStore


def _make(spec: StoreSpec, bucket: str) -> "AzureStore":
    from obstore.store import AzureStore

    options: dict[str, Any] = {}
    if spec.endpoint_url:
        options["endpoint"] = spec.endpoint_url
    if spec.anonymous:
        options["skip_signature"] = True
    return AzureStore(
        bucket,
        client_options=http_options(spec),
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
        **options,
    )


def _has_key() -> bool:
    """Tell whether requests are signed with the account's key; a token would come before it."""
    here = environment_now()
    return any(here.get(name) for name in _KEYS) and not here.get("AZURE_STORAGE_TOKEN")


_KEYS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
_PROVIDER = Provider(
    name="Azure Blob Storage",
    make=_make,
    by_generation=False,
    sign_in="Set AZURE_STORAGE_ACCOUNT_NAME and a key or token, or run `az login`.",
    hosts=(
        *("core.windows.net", "core.chinacloudapi.cn", "core.usgovcloudapi.net"),
        *("fabric.microsoft.com", "storage.azure.net"),
    ),
    own_variable="AZURE_STORAGE_ENDPOINT",
    signs=_has_key,
)


class _AzureScheme:
    name = "az"

    def open(self, spec: StoreSpec) -> ObjectStore:
        """Return the store of a container."""
        return ObstoreStore(spec, _PROVIDER)


STORE_SCHEME: StoreScheme = _AzureScheme()
