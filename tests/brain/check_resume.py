"""One resume check for everything that streams: stop, save, load into a new one, go on."""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any


def endless(stream: Any) -> Iterator[Any]:
    """Yield items epoch after epoch."""
    while True:
        yield from stream


def check_resume(
    make_stream: Callable[[], Any],
    stop_after: int,
    *,
    length: int,
    flatten: Callable[[Any], list[Any]] = lambda item: [item],
    expected: list[Any] | None = None,
) -> list[Any]:
    """Assert that stopping after so many items and going on in a new stream changes nothing.

    `length` is how many items are compared in all, over as many epochs as that takes. Returns them
    flattened; give them back as `expected` to save the uninterrupted run.
    """
    if expected is None:
        whole = islice(endless(make_stream()), length)
        expected = [value for item in whole for value in flatten(item)]
    first = make_stream()
    seen = [value for item in islice(endless(first), stop_after) for value in flatten(item)]
    state = json.loads(json.dumps(first.state_dict()))
    second = make_stream()
    second.load_state_dict(state)
    assert second.state_dict() == state
    rest = islice(endless(second), length - stop_after)
    seen += [value for item in rest for value in flatten(item)]
    assert seen == expected
    return expected
