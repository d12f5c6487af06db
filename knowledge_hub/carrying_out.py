"""A reading carried out: its command, then those after `then`, one after the other.

Everything is checked before the first command starts: an intent that nobody carries out, and a run
in the background that the next command would not wait for.
"""

from typing import Any

import msgspec

from knowledge_hub.canonical import canonical_of
from knowledge_hub.hub import Reading, intents
from knowledge_hub.intent import Intent
from tools_utilities.errors import UsageError
from tools_utilities.reading_hints import typed
from tools_utilities.terminal_text import COMMAND, Line, Span


def carry_out(reading: Reading, resources: Any, *, plan_only: bool = False) -> int:
    """Carry a reading out with a ResourceManager; returns the first exit code that is not 0.

    `plan_only` (or `dry run` in the sentence) shows the first command's plan alone: what follows
    depends on what the first leaves behind.

    Raises:
        UsageError: a command that this version cannot carry out, before any is started.
    """
    members = _members(reading)
    known = [_known(member) for member in members]
    _refuse_detached(members)
    for at, (intent, member) in enumerate(zip(known, members, strict=True)):
        if at:
            resources.console.note("", _told("then", member))
        run, resources.left_running = intent.run, False
        code = run(member, resources) if run is not None else UsageError.exit_code
        rest = members[at + 1 :]
        # A run that was left running has not ended: what follows would not wait for it.
        stops = code or resources.left_running
        if rest and (stops or plan_only or member.slots.get("plan_only")):
            why = "not done" if stops else "after it"
            resources.console.note(*(_told(why, one) for one in rest))
            return int(code)
        if code:
            return int(code)
    return 0


def _told(lead: str, member: Reading) -> Line:
    """Return a command as it is typed at a shell, with what it is there for."""
    return [f"{lead}: ", Span(typed(str(member.canonical)), COMMAND)]


def _members(reading: Reading) -> list[Reading]:
    """Return the commands of a sentence, each as a reading of its own."""
    slots = dict(reading.slots)
    rest: list[dict[str, Any]] = slots.pop("then", [])
    first = str(reading.intent)
    canonical = canonical_of(first, slots) if rest else reading.canonical
    members = [msgspec.structs.replace(reading, slots=slots, canonical=canonical)]
    for one in rest:
        intent, own = str(one["intent"]), dict(one["slots"])
        members.append(
            Reading(
                sentence=reading.sentence,
                status=reading.status,
                intent=intent,
                slots=own,
                canonical=canonical_of(intent, own),
            )
        )
    return members


def _known(member: Reading) -> Intent:
    intent = intents()[str(member.intent)]
    if intent.run is None:
        raise UsageError(
            f"`{intent.name}` is understood, but this version cannot carry it out yet",
            hint="`quark help` lists what it can do.",
        )
    return intent


def _refuse_detached(members: list[Reading]) -> None:
    for one in members[:-1]:
        if one.slots.get("detach"):
            raise UsageError(
                "`then` after a run in the background: it would not wait for the run's end",
                hint="Leave `in the background` out, or give the second command later.",
            )


def answer_why(asked: str, resources: Any) -> int:
    """Say where a setting came from: `why lr`, `why lr fox-12`. A question, no sentence.

    Raises:
        UsageError: no setting is named, or more than a setting and a run.
    """
    words = asked.rstrip("?!. ").split()[1:]
    if len(words) not in (1, 2):
        raise UsageError("why: one setting, and a run if it is not the last", hint="quark why lr")
    return int(resources.why(*words))
