"""How a record becomes text; imports no torch, so that a plan can name the rule.

`text_key`, else the field `text`, else `content`, else the only field that holds a string. A
template makes text of several fields. Records with `input_ids` (or `token_ids`) need no rule. Bytes are
text in UTF-8 where they are named, and in a WebDataset's `.txt` and `.text`, whose fields are all bytes;
a WebDataset's `__key__` is a name, no content.
"""

import string
from collections.abc import Mapping
from typing import Any

import msgspec

from tools_utilities.errors import InputNeededError, RecordError, UsageError

TOKEN_FIELDS = ("input_ids", "token_ids")
"""Fields of ready tokens; the first wins."""
USUAL_FIELDS = ("text", "content")
KEY_FIELD = "__key__"
_TEXT_MEMBERS = frozenset({"txt", "text"})
"""Extensions of a WebDataset's text files."""


class TextRule(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of the two is set."""

    field: str | None = None
    template: str | None = None

    @property
    def description(self) -> str:
        """The rule in words, for plans and fingerprints."""
        return f"field {self.field}" if self.template is None else f"template {self.template}"

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields it reads."""
        if self.template is None:
            return (str(self.field),)
        return template_fields(self.template)

    def text_of(self, sample: Mapping[str, Any]) -> str:
        """Return a record's text.

        Raises:
            RecordError: a field is missing or holds something else; detail: field.
        """
        if self.template is None:
            return _string(sample, str(self.field))
        pieces = []
        for literal, name, _, _ in string.Formatter().parse(self.template):
            pieces.append(literal)
            if name is not None:
                pieces.append(_plain(sample, name))
        return "".join(pieces)


def template_fields(template: str) -> tuple[str, ...]:
    """Return the fields a template names.

    Raises:
        UsageError: it names none, or does more than name fields.
    """
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise _bad_template(template, str(error)) from error
    names = [name for _, name, _, _ in parsed if name is not None]
    odd = [name for name in names if not name or set(name) & set(".[]!:")]
    if odd or any(form or conversion for _, _, form, conversion in parsed):
        raise _bad_template(template, "only plain field names may stand in braces")
    if not names:
        raise _bad_template(template, "it names no field")
    return tuple(dict.fromkeys(names))


def has_tokens(sample: Mapping[str, Any]) -> bool:
    """Return whether a record brings its own tokens."""
    return any(name in sample for name in TOKEN_FIELDS)


def choose_text_rule(
    sample: Mapping[str, Any], *, text_key: str | None = None, template: str | None = None
) -> TextRule:
    """Return the rule for records like `sample`.

    Raises:
        InputNeededError: no field, or several, could be the text; detail: fields.
        UsageError: `text_key` or the template names a field that the record does not have.
    """
    if text_key is not None and template is not None:
        raise UsageError(
            f"text_key={text_key} and template={template}: one of them is enough",
            hint="A template names its fields itself; leave text_key out.",
        )
    rule = _given_rule(text_key, template)
    if rule is not None:
        missing = [name for name in rule.fields if name not in sample]
        if missing:
            raise UsageError(
                f"{rule.description}: records have no field {', '.join(missing)}",
                hint=f"Their fields are: {', '.join(map(str, sample))}.",
                fields=list(sample),
            )
        return rule
    for name in USUAL_FIELDS:
        if isinstance(sample.get(name), str):
            return TextRule(field=name)
    texts = [name for name in sample if _may_be_text(sample, name)]
    if len(texts) == 1:
        return TextRule(field=texts[0])
    raise _undecided(sample, texts)


def _may_be_text(sample: Mapping[str, Any], name: str) -> bool:
    if KEY_FIELD in sample and isinstance(sample[name], bytes):
        return name.rpartition(".")[2] in _TEXT_MEMBERS
    return isinstance(sample[name], str) and name != KEY_FIELD


def _given_rule(text_key: str | None, template: str | None) -> TextRule | None:
    if template is not None:
        template_fields(template)
        return TextRule(template=template)
    return None if text_key is None else TextRule(field=text_key)


def _undecided(sample: Mapping[str, Any], texts: list[str]) -> InputNeededError:
    if texts:
        names = ", ".join(texts)
        return InputNeededError(
            f"several fields hold text: {names}",
            hint=f"Choose one with text_key={texts[0]}, or join them with a template.",
            fields=texts,
        )
    names = ", ".join(map(str, sample)) or "none"
    return InputNeededError(
        f"no field holds text (fields: {names})",
        hint="Name the field with text_key=, or use records with input_ids.",
        fields=list(sample),
    )


def _string(sample: Mapping[str, Any], name: str) -> str:
    value = _decoded(sample, name)
    if not isinstance(value, str):
        raise _bad_field(sample, name, "text")
    return value


def _decoded(sample: Mapping[str, Any], name: str) -> Any:
    value = sample.get(name)
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(
            f"field {name} holds bytes that are not UTF-8 text: byte {error.start}", field=name
        ) from error


def _plain(sample: Mapping[str, Any], name: str) -> str:
    value = _decoded(sample, name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _bad_field(sample, name, "text or a number")
    return str(value)


def _bad_field(sample: Mapping[str, Any], name: str, wanted: str) -> RecordError:
    found = f"holds {type(sample[name]).__name__}" if name in sample else "is missing"
    return RecordError(f"field {name} {found}, not {wanted}", field=name)


def _bad_template(template: str, why: str) -> UsageError:
    return UsageError(
        f"template={template}: {why}",
        hint="Write fields in braces: template='{title}: {body}'.",
        template=template,
    )
