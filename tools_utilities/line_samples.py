"""JSON lines that a source has checked, as samples."""

from collections.abc import Sequence

from tools_utilities.json_records import ExactJson, decode_objects
from tools_utilities.shard_format import ReadOptions, Sample

_exact = ExactJson(ReadOptions(allow_nan=True))
"""For what the source took: it was told whether NaN may be there."""


def samples_of_lines(lines: Sequence[bytes]) -> list[Sample]:
    """Return records, one a line without its end, as samples."""
    found = decode_objects([memoryview(b"\n".join(lines))], count=len(lines))
    return found if found is not None else [_exact.decode(line) for line in lines]
