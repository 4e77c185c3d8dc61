import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_named_in_the_docs_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")))
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "privacy").glob("test_*.py"))
    assert len(named) > 20
    assert {name for name in named if f"def {name}(" not in code} == set()
