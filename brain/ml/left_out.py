"""What a run did not train on, counted over its ranks and in words: told at its end."""

from collections.abc import Mapping

from brain.ml.process_group import ProcessGroup

SEEN_BY_MANY = (
    "skipped_bad", "skipped_unreadable", "missing_objects", "skipped_null", "skipped_empty",
    "skipped_single",
)  # fmt: skip
"""Statistics of a stream: of splits, which several ranks may open. What is left out in every epoch
counts in every one."""
OWN = "bad_records"
_WORDS = (
    ((OWN, "skipped_bad"), "bad record", "bad records"),
    (
        ("skipped_unreadable",),
        "part of a file that cannot be opened",
        "parts of files that cannot be opened",
    ),
    (("missing_objects",), "file that is gone", "files that are gone"),
    (("skipped_null", "skipped_empty"), "empty record", "empty records"),
    (("skipped_single",), "record of one token", "records of one token"),
)


def left_out(statistics: Mapping[str, float], group: ProcessGroup) -> dict[str, float]:
    """Return what was left out, over all ranks; a collective.

    Of what several ranks may have seen, as much as the one that has seen most: at least so much.
    """
    own = group.total(group.once([statistics.get(OWN, 0.0)]))[0]
    seen = {
        name: float(max(group.gather_numbers(round(statistics.get(name, 0)))))
        for name in SEEN_BY_MANY
    }
    return {OWN: own, **{name: count for name, count in seen.items() if count}}


def left_out_text(counts: Mapping[str, float], ranks: int = 1) -> str:
    """Return that in words; empty if nothing was left out."""
    parts = []
    for names, one, several in _WORDS:
        count = round(sum(counts.get(name, 0) for name in names))
        if count:
            parts.append(f"{count:,} {one if count == 1 else several}")
    least = "" if ranks == 1 or set(counts) == {OWN} else "at least "
    return f"left out, over all epochs: {least}{', '.join(parts)}" if parts else ""
