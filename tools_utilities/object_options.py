"""What the folders of data files say of how to read them: the one place where options meet objects."""

from collections.abc import Sequence

from tools_utilities.litdata_index import with_litdata_index
from tools_utilities.object_store import ObjectInfo, ObjectStore
from tools_utilities.shard_format import ReadOptions
from tools_utilities.token_width import with_token_widths


def with_folder_words(
    store: ObjectStore, infos: Sequence[ObjectInfo], options: ReadOptions
) -> ReadOptions:
    """Return options that hold what lies beside the objects: LitData's index, token files' width.

    Small objects are read once a folder, and only for formats whose files do not say it themselves.
    """
    # Both are called `.bin`; of a million other objects nothing more is asked.
    named = [info for info in infos if ".bin" in info.key.lower()]
    return with_token_widths(store, named, with_litdata_index(store, named, options))
