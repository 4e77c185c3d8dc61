"""What the silo's ledger counts against its lifetime budget."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from client_app.errors import Declined
from client_app.privacy_book import PrivacyBook
from privacy.ledger import Ledger
from privacy.records import RECORD_ADJACENCY, SILO_REPLACE_ADJACENCY, SILO_ZERO_ADJACENCY
from privacy.signing import SigningKey
from tests.client_app.terms import terms_of

FIRST, SECOND = b"1" * 16, b"2" * 16


@pytest.fixture
def book(tmp_path: Path) -> Iterator[PrivacyBook]:
    key = SigningKey.create(tmp_path / "identity.key")
    with Ledger.create(tmp_path / "ledger.jsonl", tmp_path / "ledger.anchor", signer=key) as ledger:
        yield PrivacyBook(ledger)


def test_runs_for_the_same_adjacency_add_up(book: PrivacyBook) -> None:
    book.open_run(terms_of(run_id=FIRST), "test")
    assert book.granted(besides=terms_of(run_id=SECOND)) == (0.5, 1e-6)
    assert book.granted(besides=terms_of(run_id=FIRST)) == (0.0, 0.0), "its own budget is not another's"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (RECORD_ADJACENCY, SILO_ZERO_ADJACENCY),
        (SILO_ZERO_ADJACENCY, RECORD_ADJACENCY),
        (SILO_ZERO_ADJACENCY, SILO_REPLACE_ADJACENCY),
    ],
)
def test_a_run_that_protects_something_else_is_declined(book: PrivacyBook, before: str, now: str) -> None:
    book.open_run(terms_of(run_id=FIRST, adjacency=before), "test")
    with pytest.raises(Declined, match="do not add up") as caught:
        book.granted(besides=terms_of(run_id=SECOND, adjacency=now))
    assert before in str(caught.value)
    assert now in str(caught.value)


def test_a_run_closed_without_a_release_stands_in_nobodys_way(book: PrivacyBook) -> None:
    other = terms_of(run_id=FIRST, adjacency=SILO_ZERO_ADJACENCY)
    book.open_run(other, "test")
    book.close_run(other, "nothing was sent")
    assert book.granted(besides=terms_of(run_id=SECOND)) == (0.0, 0.0)
