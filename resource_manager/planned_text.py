"""How the plan says that records become samples: text, ready tokens, or records as the model takes them."""

from collections.abc import Sequence

import msgspec

from brain.ml.model_name import is_own
from brain.ml.text_rule import choose_text_rule, has_tokens
from brain.ml.tokenizer import BYTES, FileTokenizer, load_tokenizer
from brain.ml.training_job import TrainingJob
from tools_utilities.errors import InputNeededError
from tools_utilities.shard_format import Sample
from tools_utilities.shard_formats.tokens import likely_dtype, refuse_wide

TOKEN_FILES = "tokens"  # noqa: S105 - a format's name, not a secret


class PlannedText(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before anything is loaded."""

    rule: str
    """In words."""
    mean_bytes: float = 0.0
    """Of a record's text; 0: not known."""
    samples: str = "sequences"
    """What a sample is: `sequences` of text, `records`, or empty: only the model can tell."""


def planned_text(
    job: TrainingJob, records: Sequence[Sample], format_name: str | None = None
) -> PlannedText:
    """Return how the data of a job becomes samples, by a few decoded records of a format.

    Raises:
        InputNeededError: no field, or several, could be the text, and the model is one of text.
        UsageError: the named field is not in the records, or tokens are read as what they are not.
    """
    narrow = job.token_dtype is None and likely_dtype(job.vocab_size) == "uint16"
    if format_name == TOKEN_FILES and records and narrow:
        refuse_wide(records[0], "the .bin files")
    own = is_own(job.model) or job.command is not None
    try:
        found = _text_of(job, records)
    except InputNeededError:
        if not own:
            raise
        return PlannedText(rule=f"records, by {job.model}", samples="records")
    if not own:
        return found
    # Only running it could tell which of the two it takes.
    return PlannedText(rule=f"{found.rule}, or records as {job.model} takes them", samples="")


def end_warnings(job: TrainingJob, samples: str) -> list[str]:
    """Return a warning where text would be ended by a token that nobody has named as its end."""
    if job.tokenizer == BYTES or job.token_ends or samples == "records":
        return []
    tokenizer = load_tokenizer(job.tokenizer)
    if not isinstance(tokenizer, FileTokenizer) or tokenizer.end_id is not None:
        return []
    ended_by = f"eos_id={job.eos_id}, its {tokenizer.name_of(job.eos_id)!r}"
    return [
        (
            f"tokenizer={job.tokenizer} has no end token of a usual name: {ended_by} would end the"
            " documents; say eos_id="
        )
    ]


def _text_of(job: TrainingJob, records: Sequence[Sample]) -> PlannedText:
    if not records:
        return PlannedText(rule="no record was decoded")
    if has_tokens(records[0]) and job.text_key is None and job.template is None:
        return PlannedText(rule="tokens of the records (input_ids)")
    rule = choose_text_rule(records[0], text_key=job.text_key, template=job.template)
    lengths = [len(rule.text_of(record).encode("utf-8", "replace")) for record in records]
    return PlannedText(rule=rule.description, mean_bytes=sum(lengths) / len(lengths))
