"""Which shard groups a run trains on and which it validates on. Pure, but for the injected chooser."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools_utilities.data_objects import differ_by_split
from tools_utilities.errors import InputNeededError, UsageError
from tools_utilities.scripts.dataset_discovery import ShardGroup
from tools_utilities.terminal_picker import Choice, parse_picks
from tools_utilities.terminal_text import human_bytes

Chooser = Callable[[Sequence[ShardGroup]], Sequence[ShardGroup]]
"""Lets a person choose; returns none when they left. Raises InputNeededError when nobody is there."""


def choose_groups(
    groups: Sequence[ShardGroup], wanted: Mapping[str, Any] | str | None, ask: Chooser
) -> tuple[list[ShardGroup], str]:
    """Return the groups to train on, and how they came to be chosen.

    `groups` are the choices (no hold-outs), best first, numbered from 1 as they are listed.
    `wanted` is the language's `groups` slot or the text of `--groups`; None: the only one, else ask.

    Raises:
        UsageError: `wanted` names what is not there, or the person chose none.
        InputNeededError: several, nothing wanted, and nobody to ask.
    """
    if wanted is not None:
        indices = _wanted_indices(groups, wanted)
        return [groups[i] for i in indices], _how(wanted)
    if len(groups) == 1:
        return [groups[0]], "the only group"
    chosen = list(ask(groups))
    if not chosen:
        raise UsageError("no group was chosen: nothing was started")
    return chosen, "chosen"


def picked_flag(groups: Sequence[ShardGroup], chosen: Sequence[ShardGroup]) -> str:
    """Return the flag that makes the same choice among `groups` without asking."""
    return f"--groups {','.join(str(groups.index(one) + 1) for one in chosen)}"


def _wanted_indices(groups: Sequence[ShardGroup], wanted: Mapping[str, Any] | str) -> list[int]:
    sizes = [group.total_bytes for group in groups]
    if isinstance(wanted, str):
        return parse_picks(wanted, sizes)
    if "pick" in wanted:
        return parse_picks(",".join(str(number) for number in wanted["pick"]), sizes)
    if wanted.get("rule") == "largest":
        return parse_picks("largest", sizes)
    excluded = [str(word) for word in wanted.get("exclude", ())]
    left = [i for i, group in enumerate(groups) if not any(_is(group, word) for word in excluded)]
    if not left:
        raise UsageError(
            f"except {', '.join(excluded)}: no group is left",
            hint="Name fewer groups to leave out.",
        )
    return left


def _is(group: ShardGroup, word: str) -> bool:
    """Return whether a word people use names this group: its split, its folder or its stem."""
    name = _name_of(group.prefix)
    return word.casefold() in {
        (group.split or "").casefold(),
        name.casefold().rstrip("-_."),
        group.stem.casefold().rstrip("-_."),
    }


def _how(wanted: Mapping[str, Any] | str) -> str:
    if isinstance(wanted, str):
        return f"--groups {wanted}"
    return "all groups" if wanted.get("rule") == "all" else "as the sentence says"


def validation_siblings(
    chosen: Sequence[ShardGroup], groups: Sequence[ShardGroup]
) -> list[ShardGroup]:
    """Return the validation groups that stand beside the chosen ones; test splits never.

    Beside: in the same folder, or in a folder next to it (`x/train/` and `x/val/`), under a name
    that differs by its split word alone (`books-val-` does not go with `wiki-train-`).
    """
    usable = [group for group in groups if group.split == "val" and group.decodes is not False]
    usable = [group for group in usable if group not in chosen]
    same_folder = [
        group
        for group in usable
        if any(
            group.folder == one.folder and differ_by_split(_label(group), _label(one))
            for one in chosen
        )
    ]
    return same_folder or [
        group
        for group in usable
        if any(
            _above(group.folder) == _above(one.folder)
            and differ_by_split(_name_of(group.folder), _name_of(one.folder))
            for one in chosen
        )
    ]


def _label(group: ShardGroup) -> str:
    return group.prefix[len(group.folder) :] or group.stem


def _above(folder: str) -> str:
    return folder.rstrip("/").rpartition("/")[0]


def _name_of(folder: str) -> str:
    return folder.rstrip("/").rpartition("/")[2]


def choices_of(groups: Sequence[ShardGroup]) -> list[Choice]:
    """Return groups as the picker shows them."""
    return [
        Choice(
            name=group.prefix,
            facts=(
                f"{group.score:.2f}",
                f"{group.objects_shown} objects",
                ("" if group.complete_listing else "≥ ") + human_bytes(group.total_bytes),
                group.format or "unknown",
            ),
            why="; ".join(group.reasons),
            size_bytes=group.total_bytes,
        )
        for group in groups
    ]


def several_groups_error(groups: Sequence[ShardGroup], command: str) -> InputNeededError:
    """Return the error for a choice that nobody can make, with a flag that makes it."""
    return InputNeededError(
        f"{len(groups)} shard groups qualify and there is no terminal to choose at",
        hint=f"Add --groups 1 (or 1,2 · all · largest): {command} --groups 1",
        groups=[group.prefix for group in groups],
    )
