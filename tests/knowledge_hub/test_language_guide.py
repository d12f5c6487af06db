"""docs/language.md says what the phrase table says."""

from pathlib import Path

from knowledge_hub.language_guide import guide

FILE = Path(__file__).parents[2] / "docs" / "language.md"


def test_the_guide_is_up_to_date():
    assert FILE.read_text(encoding="utf-8") == guide(), "python -m knowledge_hub.language_guide"
