"""The elements of a list: the same places whatever the window, in memory of a few windows."""

import json
import random
import tracemalloc
from typing import Any

import pytest

from tools_utilities.json_elements import BadListError, Span, element_spans
from tools_utilities.line_index import no_pages

ODD = [
    {"text": '}, {"a": [1], "b": "\\" ] ,'},
    {"inner": [{"a": 1}, {"b": [{}, {}]}], "é": "ü" * 40},
    {"long": "x" * 500},
    {},
    [1, [2]],
    -12345.5e-3,
    True,
    None,
    "text, ] }",
]


def spans_of(data: bytes, window: int) -> list[Span]:
    found = element_spans(memoryview(data), 0, no_pages, window=window)
    return [span for spans in found for span in spans]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("window", [1, 7, 64, 1 << 20])
def test_every_element_is_found_whatever_the_window(seed, window):
    chance = random.Random(seed)
    values = [chance.choice(ODD) for _ in range(chance.randint(1, 60))]
    text = json.dumps(
        values, indent=chance.choice([None, 0, 3]), ensure_ascii=chance.choice([True, False])
    )
    data = (text + " \n").encode()

    spans = spans_of(data, window)

    assert [json.loads(data[start:end]) for start, end in spans] == values
    for start, end in spans:
        assert data[start:end] == data[start:end].strip()


@pytest.mark.parametrize("window", [1, 16, 1 << 20])
@pytest.mark.parametrize(
    ("data", "index", "offset"),
    [
        (b'[{"a":1}', 1, 8),
        (b'[{"a":1},', 1, 9),
        (b'[{"a":1},]', 1, 8),
        (b'[{"a":1} {"b":2}]', 1, 9),
        (b'[{"a":1},{"b":}]', 1, 14),
        (b'[{"a":1}]x', 1, 8),
        (b'[{"a":1},{"b":"no end}]', 1, 14),
        (b"[1,2,tru]", 2, 5),
    ],
)
def test_what_is_no_list_is_told_with_its_place(data, index, offset, window):
    with pytest.raises(BadListError) as failure:
        spans_of(data, window)

    assert (failure.value.index, failure.value.offset) == (index, offset)


def test_a_bad_element_does_not_ask_for_the_rest_of_the_list():
    data = b'[{"a": nonsense}' + b',{"a":1}' * 500_000 + b"]"

    def look() -> None:
        with pytest.raises(BadListError):
            spans_of(data, 1 << 12)

    peak = _peak(look)

    assert peak < 400_000


@pytest.mark.parametrize(
    "element", [b'{"a": 1, "b": "%s"}' % (b"x" * 300), b'{"a": [{"b": 1}, {"c": 2}]}']
)
def test_memory_is_that_of_some_windows(element):
    window = 16 << 10
    data = b"[" + b",\n".join([element] * (800_000 // len(element))) + b"]"
    passed: list[int] = []

    def look() -> None:
        for _ in element_spans(memoryview(data), 0, passed.append, window=window):
            pass

    peak = _peak(look)

    assert peak < 24 * window
    assert len(data) - 10 < sum(passed) + len(passed) * 2 < len(data) + 10 + len(passed) * 2


def _peak(work: Any) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
