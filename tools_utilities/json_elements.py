"""Where the elements of one JSON list lie, found window by window: a list of any size in little memory."""

import json
import re
from collections.abc import Callable, Iterator
from typing import AnyStr, NamedTuple

import msgspec

WINDOW_BYTES = 4 << 20
SPACE = b" \t\r\n"
_LOOK_BYTES = 4096

_CUT_BYTES = 16
"""The longest word, number sign or escape that a window's end may leave unfinished."""

_TRIES = 8
"""Braces that may turn out to end something inside an element."""
_CLOSED = frozenset('}]"')
_space = re.compile(rb"[ \t\r\n]*")
_between = re.compile(rb"[ \t\r\n]*,?[ \t\r\n]*")
_blank = re.compile(r"[ \t\r\n]*")
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])
_scan = json.JSONDecoder().raw_decode


class BadListError(ValueError):
    """Why something is no list: the element's index, the place in bytes and the reason."""

    def __init__(self, index: int, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        self.offset = offset
        self.reason = reason


class Span(NamedTuple):
    """Where one element begins and ends, in bytes."""

    start: int
    end: int


def element_spans(
    view: memoryview, base: int, passed: Callable[[int], None], *, window: int = WINDOW_BYTES
) -> Iterator[list[Span]]:
    """Yield the places of the elements of the list that begins at `base`, a window's at a time.

    Args:
        view: The bytes of the whole list.
        base: Where it begins, white space before `[` included.
        passed: Told how many bytes were gone through, so that their memory can be given back.
        window: Bytes looked at together; more where one element is longer.

    Raises:
        BadListError: it is not one list and nothing else.
    """
    position, index, size = after(view, base, b"["), 0, window
    if bytes(view[position : position + 1]) == b"]":
        _check_end(view, index, position)
        return
    while True:
        end = min(position + size, len(view))
        spans = _quick_spans(view, position, end) or _slow_spans(view, position, end, index)
        if not spans:  # one element longer than the window
            size *= 2
            continue
        yield spans
        index, size = index + len(spans), window
        passed(spans[-1].end - position)
        position = after(view, spans[-1].end, b"")
        mark = bytes(view[position : position + 1])
        if mark == b"]":
            _check_end(view, index, position)
            return
        ahead = after(view, position, b",")
        if mark != b"," or bytes(view[ahead : ahead + 1]) == b"]":
            what = "unterminated list" if position >= len(view) else "no , or ] after an element"
            raise BadListError(index, position, f"not JSON: {what} (at byte {position})")
        position = ahead


def _check_end(view: memoryview, index: int, position: int) -> None:
    if first_byte(view[position + 1 :]):
        raise BadListError(index, position, "more behind the list's end")


def _quick_spans(view: memoryview, start: int, end: int) -> list[Span]:
    """Return the elements of a window up to what looks like the last one's end, or none.

    What begins where an element does and is a list once it is put in brackets is whole elements.
    """
    piece = bytes(view[start:end])
    cut, elements = len(piece), list[msgspec.Raw]()
    for _ in range(_TRIES):
        cut = _comma_after_brace(piece, cut)
        if not cut:
            break
        try:
            elements = _raw_list.decode(b"[%b]" % piece[:cut])
            break
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            cut -= 1  # the end of something inside an element
    spans, position = list[Span](), 0
    for element in elements:
        begin = _skip(_between, piece, position)
        position = begin + len(memoryview(element))
        spans.append(Span(start + begin, start + position))
    return spans


def _skip(pattern: re.Pattern[AnyStr], text: AnyStr, position: int) -> int:
    found = pattern.match(text, position)
    return position if found is None else found.end()


def _comma_after_brace(piece: bytes, end: int) -> int:
    """Return the end of the last `}` before `end` that a comma follows; 0 when there is none."""
    cut = piece.rfind(b"}", 0, end) + 1
    while cut and not piece.startswith(b",", _skip(_space, piece, cut)):
        cut = piece.rfind(b"}", 0, cut - 1) + 1
    return cut


def _slow_spans(view: memoryview, position: int, end: int, index: int) -> list[Span]:
    """Return the whole elements of a window, by Python's parser: it takes NaN and says where it stops.

    As Latin-1 every byte is one character, so positions are offsets; the text inside strings does
    not matter here. None where the first element may go on behind the window.

    Raises:
        BadListError: an element is wrong, and not because the window ends.
    """
    text, is_all = str(view[position:end], "latin-1"), end == len(view)
    spans, at = list[Span](), 0
    while True:
        try:
            stop = _scan(text, at)[1]
        except (ValueError, RecursionError) as error:
            if spans or (not is_all and _may_be_cut(text, error)):
                return spans  # the rest is looked at again, first in its window or in a longer one
            reason, bad = getattr(error, "msg", str(error)), getattr(error, "pos", at)
            if is_all and bad >= len(text.rstrip()):
                reason = f"unterminated: the object ends inside the list ({reason})"
            bad += position
            raise BadListError(index, bad, f"not JSON: {reason} (at byte {bad})") from error
        if not is_all and stop >= len(text) - _CUT_BYTES and text[stop - 1] not in _CLOSED:
            return spans  # a number may go on
        spans.append(Span(position + at, position + stop))
        mark = _skip(_blank, text, stop)
        at = _skip(_blank, text, mark + 1)
        if text[mark : mark + 1] != "," or text[at : at + 1] in {"", "]"}:
            return spans


def _may_be_cut(text: str, error: Exception) -> bool:
    """Say whether an error may come from the end of a window alone."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or error.pos >= len(text) - _CUT_BYTES


def first_byte(view: memoryview) -> bytes:
    """Return the first byte that is no white space; empty when there is none."""
    for start in range(0, len(view), _LOOK_BYTES):
        text = bytes(view[start : start + _LOOK_BYTES]).lstrip(SPACE)
        if text:
            return text[:1]
    return b""


def after(view: memoryview, position: int, mark: bytes) -> int:
    """Return the first place behind white space, `mark` (if it is there) and white space."""
    for skipped in (b"", mark):
        if skipped and bytes(view[position : position + 1]) == skipped:
            position += 1
        while position < len(view) and view[position] in SPACE:
            position += 1
    return position
