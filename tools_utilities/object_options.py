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
    return with_token_widths(store, infos, with_litdata_index(store, infos, options))
