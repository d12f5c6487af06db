"""How a record becomes text."""

import pytest

from brain.ml.text_rule import TextRule, choose_text_rule, has_tokens, template_fields
from tools_utilities.errors import InputNeededError, RecordError, UsageError


@pytest.mark.parametrize(
    ("sample", "field"),
    [
        ({"title": "a", "text": "b", "content": "c"}, "text"),
        ({"title": "a", "content": "c"}, "content"),
        ({"text": 5, "content": "c", "other": "d"}, "content"),
        ({"id": 1, "body": "b"}, "body"),
    ],
)
def test_usual_fields_come_first_then_the_only_text(sample: dict[str, object], field: str):
    assert choose_text_rule(sample) == TextRule(field=field)


def test_given_field_wins():
    assert choose_text_rule({"text": "a", "body": "b"}, text_key="body").field == "body"


def test_several_texts_are_named_in_the_question():
    with pytest.raises(InputNeededError, match="title, body") as caught:
        choose_text_rule({"title": "a", "body": "b", "id": 1})
    assert caught.value.detail["fields"] == ["title", "body"]
    assert caught.value.exit_code == 2
    assert "text_key=title" in caught.value.hint


def test_no_text_names_the_fields_there_are():
    with pytest.raises(InputNeededError, match="id, score"):
        choose_text_rule({"id": 1, "score": 0.5})


def test_field_that_records_do_not_have_is_refused():
    with pytest.raises(UsageError, match="no field body") as caught:
        choose_text_rule({"text": "a"}, text_key="body")
    assert "text" in caught.value.hint


def test_template_joins_fields_and_takes_numbers():
    rule = choose_text_rule({"title": "A", "n": 2}, template="{title} no. {n}: {{kept}}")
    assert rule.fields == ("title", "n")
    assert rule.text_of({"title": "B", "n": 3}) == "B no. 3: {kept}"


@pytest.mark.parametrize("template", ["plain", "{a.b}", "{a[0]}", "{a!r}", "{a:>3}", "{", "{}"])
def test_template_that_does_more_than_name_fields_is_refused(template: str):
    with pytest.raises(UsageError, match="template="):
        template_fields(template)


def test_field_and_template_together_are_refused():
    with pytest.raises(UsageError, match="one of them"):
        choose_text_rule({"a": "b"}, text_key="a", template="{a}")


@pytest.mark.parametrize("sample", [{}, {"text": None}, {"text": 5}, {"text": ["a"]}])
def test_record_without_text_is_an_error(sample: dict[str, object]):
    with pytest.raises(RecordError, match="field text"):
        TextRule(field="text").text_of(sample)


def test_ready_tokens_need_no_rule():
    assert has_tokens({"token_ids": [1]})
    assert not has_tokens({"text": "a"})


def test_a_webdatasets_text_is_its_text_file_never_its_key():
    sample = {"__key__": "a/0001", "txt": "h\u00e9".encode(), "cls": b"1"}
    rule = choose_text_rule(sample)
    assert rule == TextRule(field="txt")
    assert rule.text_of(sample) == "h\u00e9"
    assert choose_text_rule({"__key__": "1", "en.txt": b"a", "jpg": b"b"}).field == "en.txt"
    with pytest.raises(InputNeededError, match="jpg, cls"):
        choose_text_rule({"__key__": "1", "jpg": b"a", "cls": b"1"})
    with pytest.raises(InputNeededError, match=r"de\.txt, en\.txt"):
        choose_text_rule({"__key__": "1", "de.txt": b"a", "en.txt": b"b"})


def test_bytes_are_text_where_they_are_named_and_are_utf_8():
    sample = {"body": b"abc", "n": 2}
    assert choose_text_rule(sample, text_key="body").text_of(sample) == "abc"
    assert choose_text_rule(sample, template="{body}/{n}").text_of(sample) == "abc/2"
    with pytest.raises(InputNeededError):
        choose_text_rule(sample)
    with pytest.raises(RecordError, match="body holds bytes that are not UTF-8 text: byte 1"):
        TextRule(field="body").text_of({"body": b"a\xff"})
