"""What the documents say of the code is true."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.fixture(scope="module")
def tests() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found |= set(re.findall(r"^\s*def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_a_document_names_exists(document: Path, tests: set[str]) -> None:
    named = set(re.findall(r"`(test_\w+)`", document.read_text(encoding="utf-8")))
    assert named - tests == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_a_document_links_exists(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_every_threat_of_a_deployment_names_its_test_or_says_that_there_is_none() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")]
    threats = [row for row in rows if row[0].strip() != "threat"]
    assert len(threats) > 20
    assert all(len(row) == 3 and row[1].strip() for row in threats)
    shown = re.compile(r"`test_\w+`|tests/docker|^ none")
    assert [row[0] for row in threats if not shown.search(row[2])] == []


def test_every_metric_a_document_names_is_one_of_a_run_s() -> None:
    from server_app.metrics import exposition

    there = set(re.findall(r"^# TYPE (\w+)", exposition((), "run", 0.0).decode(), re.MULTILINE))
    there.add("fcfl_history_readable")
    for document in DOCUMENTS:
        named = set(re.findall(r"\b(fcfl_(?!strategy)[a-z_]+)", document.read_text(encoding="utf-8")))
        assert named - there == set(), document
