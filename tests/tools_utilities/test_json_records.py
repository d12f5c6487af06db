"""Where JSON lines begin and which are regular: the quick look against a plain one."""

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from tools_utilities.json_records import index_json_lines

BLANKS = b" \t\r\n"
parts = st.sampled_from(
    [b"{}\n", b'{"a": 1}\n', b"{}\r\n", b"\n", b" \n", b"{\n", b"}\n", b" {}\n", b"x\n"]
)
regular = st.sampled_from([b"{}\n", b'{"a": 1}\n'])
last = st.sampled_from([b"", b"{}", b"{", b" ", b"\r"])


def plainly(data: bytes) -> tuple[list[int], list[bool]]:
    """Return the begins of all records (and the length last), and which are irregular."""
    lines = data.splitlines(keepends=True) if b"\r" not in data else data.split(b"\n")
    if b"\r" in data:
        lines = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    begins = [0, *accumulate(map(len, lines))]
    kept = [(begin, line.strip(BLANKS)) for begin, line in zip(begins, lines, strict=False)]
    kept = [(begin, text) for begin, text in kept if text]
    irregular = [not (text.startswith(b"{") and text.endswith(b"}")) for _, text in kept]
    return [begin for begin, _ in kept] + [len(data)], irregular


@settings(deadline=None)
@given(st.one_of(st.lists(parts, max_size=12), st.lists(regular, max_size=12)), last)
def test_records_and_irregular_ones_are_found(pieces: list[bytes], rest: bytes) -> None:
    data = b"".join(pieces) + rest
    starts, irregular = index_json_lines(memoryview(data))
    wanted, wanted_irregular = plainly(data)
    assert starts.tolist() == wanted
    assert (irregular is not None) == any(wanted_irregular)
    if irregular is not None:
        assert irregular.tolist() == wanted_irregular
