"""One data source of a job as a stream of token sequences: manager, view, loader, and its size."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from brain.ml.dataset_shards.shuffle_order import SPLIT_BYTES
from brain.ml.dataset_shards.split_source import SplitView
from brain.ml.dataset_shards.stream_config import bad_budget_of
from brain.ml.packing import PackedText, TokenRun, TokenSequences
from brain.ml.streamed_source import StreamedSource
from brain.ml.text_rule import TextRule, choose_text_rule, has_tokens
from brain.ml.tokenizer import MAX_UINT16, Tokenizer
from brain.ml.training_job import DataSource, TrainingJob
from tools_utilities.errors import DataNotFoundError, ObjectNotFoundError, RecordError
from tools_utilities.folder_columns import find_folder_columns, open_table_split
from tools_utilities.object_options import with_folder_words
from tools_utilities.object_store import ObjectInfo
from tools_utilities.scripts.dataset_discovery import group_objects
from tools_utilities.shard_format import OpenSplit, ReadOptions, Sample, require_format
from tools_utilities.shard_formats.tokens import refuse_wide
from tools_utilities.token_rows import TOKEN_COLUMNS
from tools_utilities.token_width import is_said

TOKEN_FILE_FORMAT = "tokens"  # noqa: S105 - a format's name, not a secret
PROBED_OBJECTS = 16
"""Objects looked into for a first record; the first ones may be empty."""
PROBED_RECORDS = 256
"""Records looked at of each, where bad ones are skipped."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Sequences of one micro-batch: tokens_BT (narrow integers, padded) and their true lengths."""

    tokens_BT: Any
    lengths_B: Any
    end_id: int | None = None
    """The token between the documents that a sequence is packed of; None: each is one of its own."""

    @property
    def num_samples(self) -> int:
        """Sequences."""
        return int(self.lengths_B.shape[0])

    @property
    def num_targets(self) -> int:
        """Tokens that are targets: all but the first of each sequence."""
        return int((self.lengths_B - 1).clamp(min=0).sum())


class Collate(msgspec.Struct, frozen=True, kw_only=True):
    """Pads the sequences of a batch to the longest on the right."""

    pad_id: int
    vocab_size: int
    end_id: int | None = None

    def __call__(self, samples: Sequence[Sample]) -> Batch:
        """Return the batch; tokens cross process borders as 2 bytes each where they fit."""
        lengths = [len(sample["tokens"]) for sample in samples]
        dtype = np.uint16 if self.vocab_size <= MAX_UINT16 else np.int32
        tokens = np.full((len(samples), max(lengths)), self.pad_id, dtype)
        for row, sample in enumerate(samples):
            tokens[row, : lengths[row]] = sample["tokens"]
        return Batch(
            tokens_BT=torch.from_numpy(tokens), lengths_B=torch.tensor(lengths), end_id=self.end_id
        )


def empty_batch(pad_id: int) -> Batch:
    """Return a batch without targets, for a rank that has run out while others have not."""
    tokens: Tensor = torch.full((1, 2), pad_id, dtype=torch.int32)
    return Batch(tokens_BT=tokens, lengths_B=torch.zeros(1, dtype=torch.int64))


class TokenSource(StreamedSource):
    """A shard group as token sequences."""

    def __init__(
        self, job: TrainingJob, data: DataSource, tokenizer: Tokenizer, *, training: bool
    ) -> None:
        """Look at the data's first record and make its stream.

        Raises:
            DataNotFoundError: there are no records.
            InputNeededError: no field, or several, could be the text.
        """
        super().__init__(job, data)
        self.view, self.about = self._choose_view(tokenizer)
        self.vocab_size = job.vocab_size or tokenizer.vocab_size
        # Rows of ready tokens are documents of their own, whatever tokens they hold.
        ended = isinstance(self.view, PackedText) or (
            isinstance(self.view, TokenRun) and job.token_ends
        )
        end_id = job.eos_id if ended else None
        self.collate = Collate(pad_id=job.pad_id, vocab_size=self.vocab_size, end_id=end_id)
        self.open_stream(training=training)

    def _choose_view(self, tokenizer: Tokenizer) -> tuple[SplitView, str]:
        """Return how this data becomes sequences, and that in words."""
        job = self._job
        key, sample, said = self._first_record()
        vocab_size = job.vocab_size or tokenizer.vocab_size
        if has_tokens(sample) and job.text_key is None and job.template is None:
            if require_format(key).name == TOKEN_FILE_FORMAT:
                if not said:  # so it is only as it seems
                    refuse_wide(sample, key)
                return TokenRun(vocab_size=vocab_size, seq_len=job.seq_len), "tokens as one run"
            self.options = msgspec.structs.replace(self.options, first_of=TOKEN_COLUMNS)
            view = TokenSequences(vocab_size=vocab_size, seq_len=job.seq_len, overlong=job.overlong)
            return view, "tokens, one sequence a row"
        rule = choose_text_rule(sample, text_key=job.text_key, template=job.template)
        self.options = msgspec.structs.replace(self.options, columns=rule.fields)
        return self._packed(rule, tokenizer), rule.description

    def _packed(self, rule: TextRule, tokenizer: Tokenizer) -> PackedText:
        job = self._job
        return PackedText(
            rule=rule,
            tokenizer=tokenizer,
            eos_id=job.eos_id,
            seq_len=job.seq_len,
            on_bad=job.on_bad,
            bad_budget=bad_budget_of(job.on_bad, job.bad_budget),
        )

    def _first_record(self) -> tuple[str, Sample, bool]:
        """Return the key and first record that can be read, and whether token widths are said there.

        Raises:
            DataNotFoundError: there are none.
            RecordError: one cannot be read and must not be skipped, or none can.
        """
        data, manager = self.data, self.manager
        infos = group_objects(manager.store, data.prefix, data.stem, format_name=data.format)
        probed = [info for info in infos if info.size_bytes][:PROBED_OBJECTS]
        options = with_folder_words(manager.store, probed, self.options)
        if self._job.text_key or self._job.template:
            # Only who names a folder's column means it; it is never the one field that holds text.
            folder = data.prefix[: data.prefix.rfind("/") + 1]
            columns = find_folder_columns((info.key for info in infos), folder)
            options = msgspec.structs.replace(options, folder_columns=columns)
        last: RecordError | ObjectNotFoundError | None = None
        for info in probed:
            try:
                sample = self._first_of(info, options)
            except (RecordError, ObjectNotFoundError) as error:
                if not self._may_skip(error):
                    raise
                last = error
            else:
                if sample is not None:
                    return info.key, sample, is_said(info.key, options)
        if last is not None:
            raise last
        raise DataNotFoundError(
            f"{data.store.uri}: no records at prefix {data.prefix!r}",
            hint="Check the prefix; a folder ends in `/`.",
            prefix=data.prefix,
        )

    def _first_of(self, info: ObjectInfo, options: ReadOptions) -> Sample | None:
        """Return an object's first record that can be read; None where its first split has none."""
        plan_splits = require_format(info.key).plan_splits
        splits = plan_splits(info, partial(self.manager.read_range, info), SPLIT_BYTES, options)
        shard = self.manager.open_shard(info)
        try:
            opened = open_table_split(shard, splits[0], options)
            try:
                return self._first_readable(opened)
            finally:
                opened.close()
        finally:
            shard.close()

    def _first_readable(self, opened: OpenSplit) -> Sample | None:
        last: RecordError | None = None
        for index in range(min(opened.num_samples, PROBED_RECORDS)):
            try:
                return opened.read([index])[0]
            except RecordError as error:
                if not self._may_skip(error):
                    raise
                last = error
        if last is not None:
            raise last
        return None
