"""Where a sharded dataset is: the store and the prefix that a folder or URI names."""

from pathlib import Path

from tools_utilities.object_store import StoreSpec


def locate_dataset(
    dataset_dir: str,
    *,
    endpoint_url: str | None = None,
    profile: str | None = None,
    region: str | None = None,
) -> tuple[StoreSpec, str]:
    """Return the store of a folder or URI, and the prefix in it (empty, or ending in `/`)."""
    if "://" not in dataset_dir:
        return StoreSpec(uri=f"file://{Path(dataset_dir).expanduser().resolve()}"), ""
    scheme, _, rest = dataset_dir.partition("://")
    if scheme == "file":
        return StoreSpec(uri=dataset_dir.rstrip("/")), ""
    bucket, _, prefix = rest.partition("/")
    spec = StoreSpec(
        uri=f"{scheme}://{bucket}", endpoint_url=endpoint_url, profile=profile, region=region
    )
    return spec, f"{prefix.strip('/')}/" if prefix.strip("/") else ""
