"""From a reading that is not ok to one that is, by asking; or to an error that says what is missing.

Knows readings by their fields alone (`knowledge_hub.hub.Reading`), so that it sits below them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from tools_utilities.console import Console
from tools_utilities.errors import InputNeededError, UsageError
from tools_utilities.reading_hints import next_command, typed
from tools_utilities.redaction import redact
from tools_utilities.run_words import said_run
from tools_utilities.terminal_reading import Mark, reading_lines
from tools_utilities.terminal_text import COMMAND, Line, Span, pairs

MOST_QUESTIONS = 12
"""A sentence that is still not understood after so many answers is given up."""
MOST_WORDS = 8
LONGEST_WORD = 60
"""Unknown words that an error names, and their letters; the marks show all of them."""
CONNECTORS = {"data": "with ", "run": "", "source": ""}
"""What makes an answer read as its slot, where the answer alone would not."""


class Offered(NamedTuple):
    """An answer that can be given to an open question."""

    answer: str
    about: str = ""


Offer = Callable[[str, str | None], Sequence[Offered]]
"""Returns the answers known for a slot of an intent; others may be given too."""


def nothing_offered(_slot: str, _intent: str | None) -> Sequence[Offered]:
    """Offer no answers."""
    return ()


class SpanLike(Protocol):
    """A piece of the sentence and the slot that owns it."""

    text: str
    start: int
    end: int
    slot: str


class UnknownLike(Protocol):
    """A piece of the sentence that nobody owns."""

    text: str
    start: int
    end: int
    suggest: str | None


class QuestionLike(Protocol):
    """What has to be answered before the sentence can be carried out."""

    slot: str
    text: str
    choices: Sequence[Any]


class ReadingLike(Protocol):
    """The fields of a reading that are used here."""

    sentence: str
    status: str
    intent: str | None
    confirm: bool
    canonical: str | None
    slots: Mapping[str, Any]

    @property
    def spans(self) -> Sequence[SpanLike]:
        """Owned pieces."""
        ...

    @property
    def unaccounted(self) -> Sequence[UnknownLike]:
        """Pieces nobody owns."""
        ...

    @property
    def questions(self) -> Sequence[QuestionLike]:
        """What is open."""
        ...


R = TypeVar("R", bound=ReadingLike)


def drawn(reading: ReadingLike, *, width: int | None, draw: bool) -> list[Line]:
    """Return a reading as lines: the sentence, its marks, the status, questions, the command."""
    lines = _marked(reading, width=width, draw=draw)
    facts = [("status", f"{reading.status} ({reading.intent or 'no intent'})")]
    facts += [
        ("asks", " · ".join([question.text, *map(str, question.choices)]))
        for question in reading.questions
    ]
    facts += [("unknown", _unknown(item)) for item in reading.unaccounted]
    lines += pairs(facts, width=width, indent=0)
    if reading.canonical:
        lines.append([Span("same as  ", "dim"), Span(typed(reading.canonical), COMMAND)])
    return lines


def _marked(reading: ReadingLike, *, width: int | None, draw: bool) -> list[Line]:
    """Return the sentence and its marks; secrets as wide as they were, so that marks stay in place."""
    sentence = redact(reading.sentence, same_width=True)
    return reading_lines(sentence, marks_of(reading), width=width, draw=draw)


def marks_of(reading: ReadingLike) -> list[Mark]:
    """Return the marks that a reading draws under its sentence."""
    owned = [Mark(span.start, span.end, str(span.slot)) for span in reading.spans]
    unknown = [
        Mark(item.start, item.end, _meant(item) or "not understood", "error")
        for item in reading.unaccounted
    ]
    return [*owned, *unknown]


def settle(
    reading: R, read: Callable[[str], R], console: Console, offer: Offer = nothing_offered
) -> tuple[R, tuple[str, ...]]:
    """Return a reading that can be carried out, and the words that the person said to ignore.

    At a terminal it asks; else it raises at once and nothing is read from anywhere.

    Raises:
        UsageError: refused, or the person did not agree.
        InputNeededError: an answer is needed and nobody can be asked.
    """
    ignored: list[str] = []
    for _ in range(MOST_QUESTIONS):
        if reading.status == "ok":
            return reading, tuple(ignored)
        if reading.status == "refused":
            raise _refused(reading)
        if not console.can_ask:
            console.note(*_marked(reading, width=console.note_width, draw=console.draws_blocks))
            raise needed(reading, offer, read)
        console.note(*drawn(reading, width=console.note_width, draw=console.draws_blocks))
        if reading.status == "corrected":
            if console.confirm("Is that what you mean?", default=not reading.confirm):
                return reading, tuple(ignored)
            raise UsageError("not confirmed: nothing done")
        if reading.status == "unaccounted":
            reading = read(_without_unknown(reading, read, console, ignored))
        else:
            reading = read(_answered(reading, read, console, offer))
    raise UsageError("too many open questions", hint="Say it in one sentence; see `quark help`.")


def needed(
    reading: ReadingLike,
    offer: Offer = nothing_offered,
    read: Callable[[str], ReadingLike] | None = None,
) -> InputNeededError:
    """Return the error for a reading that is not ok, where nobody can be asked.

    `read` reads what is to be offered: only a command that is understood is.
    """
    if reading.status == "corrected":
        return InputNeededError(
            f"read as a correction: {reading.canonical}",
            hint=next_command(reading, read),
        )
    if reading.status == "unaccounted":
        words = _listed([_unknown(item) for item in reading.unaccounted])
        return InputNeededError(
            f"not understood: {words}", hint=_hint_for_unknown(reading, read),
        )  # fmt: skip
    texts = [
        " · ".join([question.text, *map(str, question.choices)]) for question in reading.questions
    ]
    what = "; ".join(texts) or "nothing in it says what to do"
    offered = _offered(reading, offer)
    if offered:
        said = f'quark "{_with_answer(reading, reading.questions[0], offered[0].answer)}"'
        more = ", ".join(one.answer for one in offered[1:])
        return InputNeededError(
            f"{reading.status}: {what}", hint=f"Say it: {said}" + (f"; or {more}" if more else "")
        )
    return InputNeededError(f"{reading.status}: {what}", hint=next_command(reading, read))


def _offered(reading: ReadingLike, offer: Offer) -> Sequence[Offered]:
    """Return the answers known for the first question, where only an answer is missing."""
    if reading.status != "incomplete" or not reading.questions or reading.questions[0].choices:
        return ()
    offered = offer(reading.questions[0].slot, reading.intent)
    return [one for one in offered if one.answer.isprintable()]


def _refused(reading: ReadingLike) -> UsageError:
    why = "; ".join(question.text for question in reading.questions)
    return UsageError(
        f"refused{': ' + why if why else ''}. Nothing done.",
        hint="Say it as a plain command, without shell syntax; see `quark help`.",
    )


def _is_rule(item: UnknownLike) -> bool:
    """Tell what a value must be (a sentence) from a word that may be meant."""
    return bool(item.suggest and item.suggest.endswith("."))


def _meant(item: UnknownLike) -> str:
    if not item.suggest:
        return ""
    return item.suggest.rstrip(".") if _is_rule(item) else f"did you mean {item.suggest}?"


def _unknown(item: UnknownLike) -> str:
    text = redact(item.text)  # before it is cut: a piece of a secret is not known again
    text = text if len(text) <= LONGEST_WORD else f"{text[:LONGEST_WORD]}..."
    return f"{text} ({_meant(item)})" if item.suggest else text


def _listed(words: Sequence[str]) -> str:
    more = len(words) - MOST_WORDS
    return ", ".join(words[:MOST_WORDS]) + (f" and {more} more" if more > 0 else "")


def _hint_for_unknown(reading: ReadingLike, read: Callable[[str], ReadingLike] | None) -> str:
    """Return what a value must be, where that is it, and the next command."""
    rules = [str(item.suggest) for item in reading.unaccounted if _is_rule(item)]
    return " ".join([*rules, next_command(reading, read)])


def _without_unknown(
    reading: ReadingLike, read: Callable[[str], ReadingLike], console: Console, ignored: list[str]
) -> str:
    words = _listed([item.text for item in reading.unaccounted])
    if not console.confirm(f"Ignore {words}?", default=False):
        raise UsageError(f"not understood: {words}", hint=_hint_for_unknown(reading, read))
    sentence = reading.sentence
    for item in sorted(reading.unaccounted, key=lambda item: item.start, reverse=True):
        ignored.insert(0, item.text)
        sentence = sentence[: item.start] + " " + sentence[item.end :]
    return sentence


def _answered(
    reading: ReadingLike, read: Callable[[str], ReadingLike], console: Console, offer: Offer
) -> str:
    """Ask the first open question and return the sentence with its answer."""
    if not reading.questions:
        raise needed(reading, offer, read)
    question = reading.questions[0]
    choices = [str(choice) for choice in question.choices]
    if choices:
        index = console.menu(question.text, choices)
        answer = "" if index is None else choices[index]
    else:
        answer = _answer_of(question, _offered(reading, offer), console)
    if not answer:
        raise UsageError("no answer: nothing done")
    if reading.status in ("ambiguous", "conflict"):
        return _replaced(reading, question, answer)
    return _with_answer(reading, question, answer)


def _answer_of(question: QuestionLike, offered: Sequence[Offered], console: Console) -> str:
    """Ask an open question; a number takes one of what is offered."""
    if not offered:
        return console.ask(question.text)
    width = max(len(one.answer) for one in offered)
    console.note(
        *(f"  {at}  {one.answer:{width}}  {one.about}" for at, one in enumerate(offered, start=1))
    )
    answer = console.ask(f"{question.text} [1-{len(offered)}, or its name]")
    if answer.isdecimal() and 1 <= int(answer) <= len(offered):
        return offered[int(answer) - 1].answer
    return answer


def _with_answer(reading: ReadingLike, question: QuestionLike, answer: str) -> str:
    if question.slot == "intent" or reading.intent is None:
        return f"{answer} {reading.sentence}"
    if question.slot == "run" and answer not in ("latest", "everything") and " " not in answer:
        answer = said_run(answer.strip("\"'"))
    return f"{reading.sentence} {CONNECTORS.get(question.slot, '')}{_quoted(answer)}"


def _replaced(reading: ReadingLike, question: QuestionLike, answer: str) -> str:
    """Return the sentence with what the question is about said as the answer says it."""
    spans = [span for span in reading.spans if span.slot == question.slot]
    if not spans:
        return answer
    sentence = reading.sentence
    for span in sorted(spans, key=lambda span: span.start, reverse=True):
        sentence = sentence[: span.start] + " " + sentence[span.end :]
    return f"{sentence.strip()} {answer}"


def _quoted(answer: str) -> str:
    if " " not in answer or answer[0] in "\"'":
        return answer
    return f'"{answer}"' if '"' not in answer else f"'{answer}'"
