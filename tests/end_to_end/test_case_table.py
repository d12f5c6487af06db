"""Every public case and every real file has a test that names it; a case without one fails here."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
TEXTS = {
    path.relative_to(TESTS).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(TESTS.rglob("test_*.py"))
    if path.name != Path(__file__).name
}
CASES = re.findall(
    r"^## (B\d\d) ", (TESTS / "cases/cases.md").read_text(encoding="utf-8"), re.MULTILINE
)
STREAMING = [
    "B10",
    "B11",
    "B14",
    "B16",
    "B17",
    "B19",
    "B20",
    "B23",
    "B28",
    "B29",
    "B31",
    "B34",
    "B35",
    "B37",
    "B38",
]
FILES = sorted(
    path.relative_to(TESTS / "cases/files").as_posix()
    for kind in ("parquet", "jsonl", "jsonsuite", "compressed", "tar", "listings", "made")
    for path in (TESTS / "cases/files" / kind).rglob("*")
    if path.is_file()
)


def naming(case: str) -> list[str]:
    """Return the test files with a test that is named after a case: it asserts its outcome."""
    pattern = re.compile(rf"^ *def test_{case.lower()}_", re.MULTILINE)
    return [name for name, text in TEXTS.items() if pattern.search(text)]


@pytest.mark.parametrize("case", STREAMING)
def test_every_case_of_streaming_is_a_test(case):
    assert case in CASES
    assert naming(case)


@pytest.mark.parametrize("file", FILES)
def test_every_real_file_is_read_by_a_test(file):
    """By its own name, by its number (`b28_f*`), or by a test that reads its whole folder."""
    stem = Path(file).name.partition(".")[0]
    family = stem.rpartition("_")[0] if stem.startswith("b28_") else stem
    number = re.match(r"b28_(f\d)", stem)
    wanted = {stem, family, number[1] if number else stem}
    folder = file.partition("/")[0]
    found = [
        name
        for name, text in TEXTS.items()
        if any(word in text for word in wanted)
        or re.search(rf"{folder}\W.*(glob|iterdir)|(glob|iterdir).*{folder}", text)
    ]
    assert found, file
