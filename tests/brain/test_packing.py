"""Sequences out of splits: nothing lost, nothing twice, the same however they are read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brain.ml.packing import PackedText, TokenRun, TokenSequences
from brain.ml.text_rule import TextRule
from brain.ml.tokenizer import ByteTokenizer, FileTokenizer, check_special_ids, load_tokenizer
from tools_utilities.errors import DataError, DataNotFoundError, RecordError, UsageError

EOS = 2


class SplitInMemory:
    """An open split of a list; a record that is an exception is raised."""

    key = "memory.jsonl"

    def __init__(self, records: Sequence[Any]) -> None:
        self.records = list(records)
        self.num_samples = len(self.records)
        self.num_bytes = 0
        self.skipped: dict[str, int] = {}
        self.closed = False

    def read(self, indices: Sequence[int]) -> list[Any]:
        found = [self.records[index] for index in indices]
        for index, record in zip(indices, found, strict=True):
            if record is None:
                raise RecordError(f"{self.key}: record {index + 1}", key=self.key, index=index)
        return found

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True


def _texts(*texts: str) -> SplitInMemory:
    return SplitInMemory([{"text": text} for text in texts])


def _rows(*rows: Any) -> SplitInMemory:
    return SplitInMemory([{"input_ids": row} for row in rows])


def _packed(seq_len: int, **changes: Any) -> PackedText:
    return PackedText(
        rule=TextRule(field="text"),
        tokenizer=ByteTokenizer(),
        eos_id=EOS,
        seq_len=seq_len,
        **changes,
    )


def _sequences(opened: Any) -> list[list[int]]:
    return [sample["tokens"].tolist() for sample in opened.read(range(opened.num_samples))]


def _targets(sequences: list[list[int]]) -> list[int]:
    return [token for sequence in sequences for token in sequence[1:]]


def test_documents_are_joined_by_the_end_token_and_cut_with_a_shared_border():
    opened = _packed(3).open(_texts("ab", "c"))
    a, b, c = (byte + 3 for byte in b"abc")
    assert _sequences(opened) == [[EOS, a, b, EOS], [EOS, c, EOS]]


@given(st.lists(st.text(max_size=20), max_size=12), st.integers(1, 9))
def test_every_byte_and_end_is_a_target_exactly_once(texts: list[str], seq_len: int):
    opened = _packed(seq_len).open(_texts(*texts))
    kept = [text for text in texts if text]
    expected = [
        token
        for text in kept
        for token in (*(byte + 3 for byte in text.encode("utf-8", "surrogatepass")), EOS)
    ]
    sequences = _sequences(opened)
    assert _targets(sequences) == expected
    assert all(len(sequence) == seq_len + 1 for sequence in sequences[:-1])
    assert opened.skipped.get("empty", 0) == len(texts) - len(kept)


def test_sequences_may_be_read_in_any_order():
    opened = _packed(2).open(_texts("abcdefg", "hij"))
    whole = _sequences(opened)
    order = list(reversed(range(opened.num_samples)))
    assert [sample["tokens"].tolist() for sample in opened.read(order)] == whole[::-1]


def test_records_are_let_go_once_tokenized():
    split = _texts("abc")
    _packed(4).open(split)
    assert split.closed


def test_bad_record_fails_with_its_place_or_is_skipped_within_the_budget():
    records = [{"text": "a"}, None, {"text": 5}, {"text": "b"}]
    with pytest.raises(RecordError, match="record 2"):
        _packed(4).open(SplitInMemory(records))
    with pytest.raises(RecordError, match=r"memory\.jsonl: record 1 .*field text holds int"):
        _packed(4).open(SplitInMemory(records[2:]))
    skipping = _packed(4, on_bad="skip", bad_budget=2).open(SplitInMemory(records))
    assert _targets(_sequences(skipping)) == [ord("a") + 3, EOS, ord("b") + 3, EOS]
    assert skipping.skipped == {"bad": 2}
    with pytest.raises(DataError, match="more than 1 records"):
        _packed(4, on_bad="skip", bad_budget=1).open(SplitInMemory(records))


def test_token_rows_are_used_as_they_are():
    view = TokenSequences(vocab_size=100, seq_len=4)
    opened = view.open(_rows([5, 6, 7], [8, 9], [4]))
    assert _sequences(opened) == [[5, 6, 7], [8, 9]]
    assert opened.skipped["single"] == 1


def test_overlong_rows_are_split_cut_or_refused():
    row = list(range(10, 20))
    split = TokenSequences(vocab_size=100, seq_len=4).open(_rows(row))
    assert _sequences(split) == [row[0:5], row[4:9], row[8:10]]
    assert _targets(_sequences(split)) == row[1:]
    cut = TokenSequences(vocab_size=100, seq_len=4, overlong="cut").open(_rows(row))
    assert _sequences(cut) == [row[:4]]
    with pytest.raises(RecordError, match="row 2 has 10 tokens, seq_len is 4"):
        TokenSequences(vocab_size=100, seq_len=4, overlong="error").open(_rows([1, 2], row))


@pytest.mark.parametrize("value", [100, -1, 1.5, True])
def test_token_out_of_range_names_the_row(value: object):
    rows: list[Any] = [[1, 2], [3, value]]
    opened = TokenSequences(vocab_size=100, seq_len=4).open(_rows(*rows))
    assert opened.read([0])[0]["tokens"].tolist() == [1, 2]
    with pytest.raises(RecordError, match="2") as caught:
        opened.read([0, 1])
    assert caught.value.detail["row"] == 2
    assert caught.value.detail["index"] == 1


def test_token_file_is_one_run():
    rows = [np.array(row, np.uint16) for row in ([1, 2, 3, 4], [5, 6, 7, 8], [9])]
    opened = TokenRun(vocab_size=100, seq_len=3).open(_rows(*rows))
    assert _sequences(opened) == [[1, 2, 3, 4], [4, 5, 6, 7], [7, 8, 9]]


def test_what_changes_the_sequences_is_in_the_identity():
    base = _packed(4)
    others: list[Any] = [
        _packed(5),
        _packed(4, on_bad="skip"),
        PackedText(rule=TextRule(field="b"), tokenizer=ByteTokenizer(), eos_id=EOS, seq_len=4),
        PackedText(rule=TextRule(field="text"), tokenizer=ByteTokenizer(), eos_id=1, seq_len=4),
        TokenSequences(vocab_size=9, seq_len=4),
        TokenSequences(vocab_size=9, seq_len=4, overlong="cut"),
        TokenRun(vocab_size=9, seq_len=4),
    ]
    assert len({view.identity for view in (base, *others)}) == 8


def test_bytes_leave_room_for_the_special_tokens():
    tokens = ByteTokenizer().encode(["\0ÿ\ud800"])[0]
    assert tokens.min() == 3
    assert (tokens - 3).astype(np.uint8).tobytes() == b"\0\xc3\xbf\xed\xa0\x80"
    assert ByteTokenizer().vocab_size == 259
    check_special_ids("bytes", 259, eos_id=2, pad_id=0)
    with pytest.raises(UsageError, match="eos_id=70: a byte"):
        check_special_ids("bytes", 259, eos_id=70, pad_id=0)
    with pytest.raises(UsageError, match="pad_id=400: outside the 259"):
        check_special_ids("bytes", 259, eos_id=2, pad_id=400)


def test_tokenizer_file_is_read_and_pickles(tmp_path: Path):
    tokenizers = pytest.importorskip("tokenizers")
    import pickle

    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    tokenizer = pickle.loads(pickle.dumps(load_tokenizer(str(path))))  # noqa: S301 - our own object
    assert isinstance(tokenizer, FileTokenizer)
    assert tokenizer.vocab_size == 3
    assert [list(tokens) for tokens in tokenizer.encode(["b a", "c"])] == [[2, 1], [0]]


def test_tokenizer_file_names_its_own_end_token(tmp_path: Path):
    tokenizers = pytest.importorskip("tokenizers")
    for name, vocabulary in (("with", {"a": 0, "b": 1, "c": 2, "</s>": 3}), ("without", {"a": 0})):
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "a"))
        made.save(str(tmp_path / f"{name}.json"))
    found = [load_tokenizer(str(tmp_path / f"{name}.json")) for name in ("with", "without")]
    assert [one.end_id for one in found if isinstance(one, FileTokenizer)] == [3, None]


def test_tokenizer_file_that_is_none_or_not_there(tmp_path: Path):
    with pytest.raises(DataNotFoundError, match=r"tokenizer=.*none\.json"):
        load_tokenizer(str(tmp_path / "none.json"))
    pytest.importorskip("tokenizers")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UsageError, match=r"not a tokenizer\.json"):
        load_tokenizer(str(tmp_path / "bad.json"))
