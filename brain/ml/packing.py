"""Token sequences out of splits: views (SplitView) that a stream lays over each open split.

A sample is `{"tokens": array}` of at most seq_len + 1 tokens: seq_len inputs and, one further, their
targets. Sequences are made within a split, in file order, so they are the same for every world
size, and the stream's own position resumes them exactly.

- Text: `end doc end doc end …` is one run of tokens, cut every seq_len; neighbours share one token,
  so that every token and every end is a target exactly once. The last may be short. An end begins the
  document after it, and documents of one sequence do not see each other (`compute.documents_of`).
- Rows of `input_ids`: as they are, one sequence a row; longer than seq_len: cut, split or refused.
- Token files: one run of tokens, cut like text, nothing added.

Memory: the tokens of the open splits (2 bytes each up to 65,536 tokens of vocabulary, else 4);
the records themselves are let go.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from brain.ml.text_rule import TextRule
from brain.ml.tokenizer import MAX_UINT16, Tokenizer, Tokens
from tools_utilities.errors import DataError, RecordError, UsageError
from tools_utilities.shard_format import OpenSplit, Sample
from tools_utilities.token_rows import TokenRows, token_rows

_READ_RECORDS = 256
"""Records decoded at a time while a split is tokenized."""
PACKING_VERSION = 1


class RunOfTokens:
    """An open split of one run of tokens, cut into sequences that share their border tokens."""

    def __init__(self, tokens: Tokens, seq_len: int, skipped: dict[str, int]) -> None:
        self.num_samples = -(-max(0, len(tokens) - 1) // seq_len)
        self.num_bytes = tokens.nbytes
        self.skipped = skipped
        self._tokens = tokens
        self._seq_len = seq_len

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return sequences; the last of the split may be short."""
        step = self._seq_len
        return [{"tokens": self._tokens[i * step : (i + 1) * step + 1]} for i in indices]

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Refuse: tokens are no records."""
        raise _no_bytes(len(indices))

    def close(self) -> None:
        """Let the tokens go."""
        self._tokens = self._tokens[:0].copy()


class PackedText(msgspec.Struct, frozen=True, kw_only=True):
    """Documents packed into sequences."""

    rule: TextRule
    tokenizer: Tokenizer
    eos_id: int
    seq_len: int
    on_bad: str = "fail"
    bad_budget: int = 0
    """Records that `on_bad=skip` may leave out; counted in `skipped` as `bad`. Of a split here, of
    an epoch by the stream."""

    @property
    def identity(self) -> str:
        """Everything that changes the sequences."""
        return (
            f"text {PACKING_VERSION}; {self.rule.description}; tokenizer {self.tokenizer.identity}; "
            f"eos {self.eos_id}; seq_len {self.seq_len}; on_bad {self.on_bad}"
        )

    def open(self, split: OpenSplit) -> OpenSplit:
        """Tokenize a split whole and let it go.

        Raises:
            RecordError: a record is unreadable or has no text, and may not be skipped.
        """
        dtype = np.uint16 if self.tokenizer.vocab_size <= MAX_UINT16 else np.uint32
        end = np.array([self.eos_id], dtype)
        pieces: list[Any] = [end]
        skipped = dict(split.skipped)
        try:
            for start in range(0, split.num_samples, _READ_RECORDS):
                indices = range(start, min(start + _READ_RECORDS, split.num_samples))
                texts = self._texts(split, indices, skipped)
                for tokens in self.tokenizer.encode(texts):
                    pieces += (tokens, end)
        finally:
            split.close()
        return RunOfTokens(np.concatenate(pieces), self.seq_len, skipped)

    def _texts(
        self, split: OpenSplit, indices: Sequence[int], skipped: dict[str, int]
    ) -> list[str]:
        try:
            samples = split.read(indices)
            texts = [
                _located(self.rule, sample, split, index)
                for sample, index in zip(samples, indices, strict=True)
            ]
        except RecordError as error:
            if self.on_bad != "skip":
                raise
            if len(indices) > 1:
                return [text for i in indices for text in self._texts(split, [i], skipped)]
            skipped["bad"] = skipped.get("bad", 0) + 1
            if skipped["bad"] > self.bad_budget:
                raise DataError(
                    f"more than {self.bad_budget} records cannot be used; the last: {error}",
                    hint="Mend the data, or raise bad_budget.",
                    **error.detail,
                ) from error
            return []
        kept = [text for text in texts if text]
        if len(kept) < len(texts):
            skipped["empty"] = skipped.get("empty", 0) + len(texts) - len(kept)
        return kept


class TokenLists(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of tokens as they are, `{"input_ids": array}`: for a loop of one's own.

    Null and empty rows are skipped and counted. Give the stream `ReadOptions(first_of=TOKEN_COLUMNS)`,
    so that only that column is read.
    """

    num_ids: int = 1 << 32
    """Ids must be below it."""

    @property
    def identity(self) -> str:
        """Everything that changes the samples."""
        return f"lists {PACKING_VERSION}; ids {self.num_ids}"

    def open(self, split: OpenSplit) -> OpenSplit:
        """Return the split's token lists.

        Raises:
            RecordError: there is no token column, or it does not hold lists of integers.
        """
        return token_rows(split, num_ids=self.num_ids)


class TokenSequences(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of tokens, each a sequence of its own (several, when split)."""

    vocab_size: int
    seq_len: int
    overlong: str = "split"

    @property
    def identity(self) -> str:
        """Everything that changes the sequences."""
        return (
            f"rows {PACKING_VERSION}; overlong {self.overlong}; seq_len {self.seq_len}; "
            f"vocabulary {self.vocab_size}"
        )

    def open(self, split: OpenSplit) -> OpenSplit:
        """Lay the sequences over a split's rows.

        Raises:
            RecordError: `overlong=error` and a row is too long; detail: key, row.
        """
        rows = token_rows(split, num_ids=self.vocab_size)
        if self.overlong == "error" and len(rows.lengths) and rows.lengths.max() > self.seq_len:
            row = int(np.argmax(rows.lengths > self.seq_len))
            key = str(getattr(split, "key", "the split"))
            raise RecordError(
                f"{key}: row {row + 1} has {int(rows.lengths[row])} tokens, seq_len is {self.seq_len}",
                hint="overlong=split keeps them as several sequences, overlong=cut drops the rest.",
                key=key, row=row + 1, index=row,
            )  # fmt: skip
        return RowSequences(rows, self.seq_len, cut=self.overlong == "cut")


class RowSequences:
    """An open split of token rows, each seen as one or several sequences.

    A row of one token has no target and is skipped, counted as `single`. 8 bytes a row.
    """

    def __init__(self, rows: TokenRows, seq_len: int, *, cut: bool) -> None:
        targets: npt.NDArray[np.int64] = rows.lengths.astype(np.int64) - 1
        pieces = np.minimum(targets, 1) if cut else -(-targets // seq_len)
        self._first_sample = np.concatenate(([0], np.cumsum(pieces)))
        self.num_samples = int(self._first_sample[-1])
        self.num_bytes = rows.num_bytes + self._first_sample.nbytes
        single = int(np.count_nonzero(targets == 0))
        self.skipped = {**rows.skipped, **({"single": single} if single else {})}
        self._rows = rows
        self._seq_len = seq_len
        # A row cut short keeps seq_len tokens; a split one keeps its border tokens in both pieces.
        self._kept = seq_len if cut else seq_len + 1

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return sequences.

        Raises:
            RecordError: a token is out of range; detail: key, row, value, index.
        """
        wanted = np.asarray(indices, np.int64)
        rows = np.searchsorted(self._first_sample, wanted, side="right") - 1
        starts = (wanted - self._first_sample[rows]) * self._seq_len
        try:
            tokens = self._rows.read_tokens(rows.tolist())
        except RecordError as error:
            if error.detail.get("index") in rows:
                error.detail["index"] = indices[rows.tolist().index(error.detail["index"])]
            raise
        return [
            {"tokens": row[start : start + self._kept]}
            for row, start in zip(tokens, starts.tolist(), strict=True)
        ]

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Refuse: tokens are no records."""
        raise _no_bytes(len(indices))

    def close(self) -> None:
        """Close the rows."""
        self._rows.close()


class TokenRun(msgspec.Struct, frozen=True, kw_only=True):
    """A token file: the split's tokens in one run."""

    vocab_size: int
    seq_len: int

    @property
    def identity(self) -> str:
        """Everything that changes the sequences."""
        return f"run {PACKING_VERSION}; seq_len {self.seq_len}; vocabulary {self.vocab_size}"

    def open(self, split: OpenSplit) -> OpenSplit:
        """Join the split's tokens and cut them anew.

        Raises:
            RecordError: a token is out of range; detail: key, row, value.
        """
        dtype = np.uint16 if self.vocab_size <= MAX_UINT16 else np.uint32
        pieces: list[Any] = [np.zeros(0, dtype)]
        try:
            rows = token_rows(split, num_ids=self.vocab_size)
            for start in range(0, rows.num_samples, _READ_RECORDS):
                indices = range(start, min(start + _READ_RECORDS, rows.num_samples))
                pieces += [tokens.astype(dtype) for tokens in rows.read_tokens(indices)]
            skipped = dict(rows.skipped)
        finally:
            split.close()
        return RunOfTokens(np.concatenate(pieces), self.seq_len, skipped)


def _located(rule: TextRule, sample: Sample, split: OpenSplit, index: int) -> str:
    try:
        return rule.text_of(sample)
    except RecordError as error:
        key = str(getattr(split, "key", "the split"))
        raise RecordError(
            f"{key}: record {index + 1} of the split: {error}",
            hint="text_key= or template= says which fields hold the text.",
            key=key, record=index + 1, index=index, **error.detail,
        ) from error  # fmt: skip


def _no_bytes(count: int) -> UsageError:
    return UsageError(f"token sequences have no record bytes ({count} asked for)")
