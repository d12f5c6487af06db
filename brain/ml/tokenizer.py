"""Tokenizers: bytes by default, or any `tokenizer.json`; imports no torch.

`bytes` needs no file and loses nothing: token 0 pads, 2 ends a document (the documented ids), 1 is
free, and byte b is token b + 3; 259 tokens in all.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tools_utilities.errors import DataNotFoundError, UsageError

BYTES = "bytes"
"""The name of the tokenizer that needs no file."""
NUM_SPECIAL = 3
"""Tokens below the bytes."""
MAX_UINT16 = 1 << 16
END_NAMES = (
    "<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[EOS]", "<|im_end|>", "<|eot_id|>", "[SEP]",
)  # fmt: skip
"""What tokenizers call the token that ends a document; the first one they have counts."""

Tokens = npt.NDArray[np.unsignedinteger[Any]]


class Tokenizer(Protocol):
    """Text to tokens; pickles, may be used from several threads."""

    vocab_size: int
    identity: str
    """What decides its output, in words; part of the order fingerprint."""

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Return each text's tokens, without an end token, in the narrowest type that fits."""
        ...


class ByteTokenizer:
    """UTF-8 bytes, shifted past the special tokens."""

    vocab_size = 256 + NUM_SPECIAL
    identity = "bytes"

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Return each text's bytes + 3; a lone surrogate is kept, as JSON may hold one."""
        return [
            np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8).astype(np.uint16)
            + np.uint16(NUM_SPECIAL)
            for text in texts
        ]


class FileTokenizer:
    """A `tokenizer.json`, through the library that wrote it (`[hf]`)."""

    def __init__(self, path: Path) -> None:
        """Load it.

        Raises:
            DataNotFoundError: no such file.
            UsageError: it is no tokenizer, or the library is not installed.
        """
        self._path = path
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataNotFoundError(
                f"tokenizer={path}: {error.strerror}",
                hint="Give the path of a tokenizer.json, or tokenizer=bytes.",
            ) from error
        self._tokenizer = _load(content, path)
        self.vocab_size = int(self._tokenizer.get_vocab_size())
        self.identity = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self._dtype: type[np.unsignedinteger[Any]] = (
            np.uint16 if self.vocab_size <= MAX_UINT16 else np.uint32
        )

    @property
    def end_id(self) -> int | None:
        """The token that ends a document, by its usual names; None: there is none."""
        found = (self._tokenizer.token_to_id(name) for name in END_NAMES)
        return next((int(token) for token in found if token is not None), None)

    def name_of(self, token: int) -> str:
        """Return a token as text."""
        return str(self._tokenizer.id_to_token(token))

    def __reduce__(self) -> tuple[Any, ...]:
        return FileTokenizer, (self._path,)

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Return each text's token ids; the tokenizer's own special tokens are not added."""
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [np.array(one.ids, self._dtype) for one in encoded]


def _load(content: bytes, path: Path) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise UsageError(
            f"tokenizer={path}: the tokenizers library is not installed",
            hint="pip install 'quark-launcher[hf]'",
        ) from error
    try:
        return tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises bare Exception for every fault of a file
        raise UsageError(
            f"tokenizer={path}: not a tokenizer.json ({error})",
            hint="Give a file that the tokenizers library saved.",
        ) from error


def load_tokenizer(name: str) -> Tokenizer:
    """Return `bytes`, or the tokenizer of a file."""
    return ByteTokenizer() if name == BYTES else FileTokenizer(Path(name))


def check_special_ids(name: str, vocab_size: int, *, eos_id: int, pad_id: int) -> None:
    """Refuse an end or padding token that is outside the vocabulary or, with bytes, is a byte.

    Raises:
        UsageError: naming the setting.
    """
    limit = NUM_SPECIAL if name == "bytes" else vocab_size
    for key, value in (("eos_id", eos_id), ("pad_id", pad_id)):
        if value >= limit:
            what = "a byte" if value < vocab_size else f"outside the {vocab_size} tokens"
            raise UsageError(
                f"{key}={value}: {what} of tokenizer={name}",
                hint=f"Use a number below {limit}.",
                key=key,
                value=value,
            )
