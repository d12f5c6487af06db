"""Lines for people about what discovery found, from the same data that `--json` writes.

With `human` a table in binary units; else bare fields, one group a line, sizes in bytes (programs
that must not stumble over blanks in keys read `--json`). Nothing is ever cut.
Keys are not escaped here: `console.py` does that for every line.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tools_utilities.data_objects import LOOSE
from tools_utilities.terminal_text import Line, human_bytes, table

_GROUP_HEAD = ("#", "prefix", "objects", "size", "median", "format", "split", "score", "why")
_FOLDER_HEAD = ("folder", "objects", "size", "")


def group_lines(data: Mapping[str, Any], *, human: bool) -> list[Line]:
    """Return the groups, best first: prefix, objects, bytes, median, format, split, score, reasons."""
    rows = [_group_fields(group, human=human) for group in data["groups"]]
    if not human:
        return ["  ".join(row) for row in rows]
    return _table(_GROUP_HEAD, [(str(i), *row) for i, row in enumerate(rows, 1)], "rlrrrllr")


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], right: str) -> list[Line]:
    return list(table(titles, rows, width=None, right=right) or ())


def _group_fields(group: Mapping[str, Any], *, human: bool) -> tuple[str, ...]:
    return (
        named(group),
        group["objects_shown"] if human else str(group["num_objects"]),
        _size(group["total_bytes"], human=human),
        _size(group["median_bytes"], human=human),
        group["format"] or "-",
        group["split"] or "-",
        f"{group['score']:.2f}",
        "; ".join(group["reasons"]) or "-",
    )


def named(group: Mapping[str, Any]) -> str:
    """Return what stands for a group: its prefix, with `*` for names without a number."""
    return str(group["prefix"]) + (LOOSE if group["stem"] == LOOSE else "")


def _size(count: float, *, human: bool) -> str:
    return human_bytes(count) if human else f"{count:.0f}"


def folder_lines(data: Mapping[str, Any], *, human: bool) -> list[Line]:
    """Return the depth listing: every folder, with the data objects directly in it."""
    rows = [
        (
            folder["prefix"] or "/",
            ("" if folder["complete"] else "≥ ") * human + str(folder["num_objects"]),
            _size(folder["total_bytes"], human=human),
            folder["note"] or "-",
        )
        for folder in data["tree"]
    ]
    return _table(_FOLDER_HEAD, rows, "lrr") if human else ["  ".join(row) for row in rows]


def failure_lines(data: Mapping[str, Any]) -> list[Line]:
    """Return every prefix that did not become a group, with its reasons."""
    lines: list[Line] = [
        f"{named(group)} ({group['objects_shown']} objects): {'; '.join(group['reasons'])}"
        for group in data["candidates"]
    ]
    return [*lines, *(f"{info['key']}: stands alone" for info in data["loose"])]


def detail_lines(data: Mapping[str, Any]) -> list[Line]:
    """Return what each score is made of, and what was left out, each with its reason."""
    lines: list[Line] = []
    for group in data["groups"]:
        factors = ", ".join(f"{name} {value:.2f}" for name, value in group["factors"].items())
        lines.append(f"score of {named(group)}: {factors}")
    lines += [f"not a group: {line}" for line in failure_lines(data)]
    for reason, keys in data["ignored_keys"].items():
        lines += [f"ignored ({reason}): {key}" for key in keys]
    return lines
