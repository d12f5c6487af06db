"""JSON records by position: one fast decode for many, and one exact decode that says what is wrong.

msgspec's `decode_lines` takes LF as white space: it accepts two records on a line and one record on
two lines. For lines that begin with `{` and end with `}` the boundary between two of them can only
be a top-level one (`}` `{` is valid nowhere inside a value, and a raw LF nowhere inside a string), so
then *as many objects as lines* proves one object a line. Anything else is decoded one by one.
"""

import json
import math
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tools_utilities.errors import RecordError
from tools_utilities.line_index import Offsets, line_starts, no_pages
from tools_utilities.shard_format import ReadOptions, Sample

BLANKS = b" \t\r"
_OPEN, _CLOSE, _CR = ord("{"), ord("}"), ord("\r")
_CUT_TOKEN = re.compile(r"[-+.\\0-9A-Za-z]*\s*")  # what may be left of a number, word or escape
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_PASS_BYTES = 4 << 20
_objects = msgspec.json.Decoder(dict[str, Any])
_encoder = msgspec.json.Encoder()
_exact_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class BadJsonError(ValueError):
    """Why one record is not the JSON object it should be; `unterminated`: it ended too early."""

    def __init__(self, reason: str, *, hint: str = "", unterminated: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.unterminated = unterminated


def index_json_lines(
    view: memoryview, passed: Callable[[int], None] = no_pages
) -> tuple[Offsets, npt.NDArray[np.bool_] | None]:
    """Return where each record begins (and the length last), and which are irregular.

    Blank and white-space-only lines are no records. An irregular line does not begin with `{` and
    end with `}`; None when there is none.
    """
    array = np.frombuffer(view, np.uint8)
    starts = line_starts(view, passed)
    if len(starts) == 1 or _all_regular(view, array, starts):
        return starts, None
    keep = np.ones(len(starts) - 1, np.bool_)
    regular = np.empty_like(keep)
    bounds = np.searchsorted(starts[:-1], np.arange(0, len(view), _PASS_BYTES)).tolist()
    for first, end in pairwise([*bounds, len(keep)]):
        regular[first:end], keep[first:end] = _look_at_lines(view, array, starts[first : end + 1])
        passed(int(starts[end]) - int(starts[first]))
    irregular = ~regular[keep]
    kept = np.append(starts[:-1][keep], starts[-1:])
    return kept, irregular if irregular.any() else None


def _all_regular(view: memoryview, array: npt.NDArray[np.uint8], starts: Offsets) -> bool:
    """Tell whether each line begins with `{` and ends with `}` and LF: then nothing is looked at twice.

    Compared as bytes, since each step over arrays may lose the interpreter's lock.
    """
    if len(view) > _PASS_BYTES or view[-1] != ord("\n"):
        return False
    count = len(starts) - 1
    if array[starts[:-1]].tobytes() != bytes((_OPEN,)) * count:
        return False
    return array[starts[1:] - 2].tobytes() == bytes((_CLOSE,)) * count


def _look_at_lines(
    view: memoryview, array: npt.NDArray[np.uint8], starts: Offsets
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which lines begin with `{` and end with `}`, and which are more than white space."""
    begins, last = starts[:-1].astype(np.int64), starts[1:].astype(np.int64) - 1
    for byte in (ord("\n"), _CR):  # step back over the line's own end
        last -= (array[np.maximum(last, 0)] == byte) & (last >= begins)
    regular = (last >= begins) & (array[begins] == _OPEN)
    regular &= array[np.maximum(last, 0)] == _CLOSE
    keep = np.ones(len(begins), np.bool_)
    for line in np.flatnonzero(~regular):
        text = bytes(view[starts[line] : starts[line + 1]]).strip(BLANKS + b"\n")
        keep[line] = bool(text)
        regular[line] = text.startswith(b"{") and text.endswith(b"}")
    return regular, keep


def decode_objects(
    pieces: list[memoryview], *, separator: bytes = b"", count: int | None = None
) -> list[Sample] | None:
    """Decode regular records in one go, or return None: then they need `ExactJson`, one by one.

    `count`: how many records the pieces hold; one each unless given.
    """
    try:
        joined = pieces[0] if len(pieces) == 1 else separator.join(pieces)
        samples: list[Sample] = _objects.decode_lines(joined)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return samples if len(samples) == (len(pieces) if count is None else count) else None


def encode_line(sample: Sample, index: int) -> bytes:
    """Return a sample as one JSON line that every strict reader takes.

    Raises:
        RecordError: it holds NaN, an infinity, or something JSON has no word for.
    """
    try:
        # msgspec writes NaN as null and bytes as text: its line stands only if it reads back equal.
        line = _encoder.encode(sample)
        if _objects.decode(line) == sample:
            return line + b"\n"
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError, OverflowError):
        pass  # the exact encoder says what is wrong
    try:
        return _exact_encoder.encode(sample).encode("utf-8") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(
            f"sample {index} cannot be written as JSON: {error}",
            hint="Use numbers, text, lists and objects; null instead of NaN. Parquet keeps bytes and times.",
            record=index + 1,
        ) from error


class ExactJson:
    """Python's own parser, made exact: one object, valid UTF-8, numbers that fit, no NaN."""

    def __init__(self, options: ReadOptions) -> None:
        hooks: dict[str, Any] = {}
        if not options.allow_nan:
            hooks = {"parse_constant": _refuse_constant, "parse_float": _finite}
        if options.strict:
            hooks["object_pairs_hook"] = _unique_keys
        self._decoder = json.JSONDecoder(**hooks)

    def decode(self, record: bytes) -> Sample:
        """Decode one record.

        Raises:
            BadJsonError: with the reason.
        """
        value = self.decode_value(record)
        if not isinstance(value, dict):
            raise BadJsonError(
                f"not an object but {_KINDS.get(type(value), 'a number')}",
                hint="A record is one JSON object: {…}.",
            )
        return value

    def decode_value(self, record: bytes) -> Any:
        """Decode one JSON value of any kind; raises BadJsonError."""
        try:
            text = record.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _bad_text(record, error) from error
        try:
            value = self._decoder.decode(text)
        except json.JSONDecodeError as error:
            raise _bad_syntax(text, error) from error
        except RecursionError as error:
            raise BadJsonError("nested too deeply") from error
        except BadJsonError:
            raise
        except ValueError as error:  # an integer of thousands of digits
            raise BadJsonError(f"a number out of range ({error})") from error
        if _SURROGATE.search(text):
            _refuse_lone_surrogates(value)
        return value


_KINDS = {list: "an array", str: "a string", type(None): "null", bool: "true or false"}


def _bad_text(record: bytes, error: UnicodeDecodeError) -> BadJsonError:
    byte = record[error.start]
    return BadJsonError(
        f"invalid UTF-8: byte 0x{byte:02x} at byte {error.start} of the record",
        unterminated=error.end == len(record) and "unexpected end" in error.reason,
    )


def _bad_syntax(text: str, error: json.JSONDecodeError) -> BadJsonError:
    if error.msg == "Extra data":
        if "\r" in text.strip(" \t\r\n"):
            hint = "Only LF ends a record; this line holds bare CR (old Mac line ends)."
        else:
            hint = "One record a line."
        return BadJsonError(
            f"more than one JSON value on the line (character {error.pos + 1})", hint=hint
        )
    ended = error.msg.startswith("Unterminated string") or _CUT_TOKEN.fullmatch(text, error.pos)
    return BadJsonError(
        f"not JSON: {error.msg} (character {error.pos + 1})", unterminated=bool(ended)
    )


def _refuse_constant(name: str) -> float:
    raise BadJsonError(f"{name} is not JSON", hint="allow_nan=true reads it as a float.")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        shown = text if len(text) <= 24 else f"{text[:12]}…{text[-8:]}"  # noqa: PLR2004 - one screen word
        raise BadJsonError(
            f"the number {shown} is out of range", hint="allow_nan=true reads it as infinity."
        )
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> Sample:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadJsonError(f"the key {twice!r} occurs twice", hint="strict=false takes the last.")
    return found


def _refuse_lone_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadJsonError("an escape stands for half a character (lone surrogate)") from error
