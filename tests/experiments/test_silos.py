"""Making silo folders."""

import stat
from pathlib import Path

import pytest

from client_app.errors import SiloError
from client_app.home import SiloHome
from experiments.silos import make_silo, make_silos
from privacy.ledger import verify
from privacy.signing import read_public_key


def test_a_silo_is_made_with_its_policy_and_an_empty_ledger(tmp_path: Path) -> None:
    made = make_silo(tmp_path / "silo", "bank-1", tmp_path / "data", epsilon=2, delta=1e-6, min_cohort=9)
    opened = SiloHome.open(tmp_path / "silo")
    assert opened == made
    assert opened.settings.name == "bank-1"
    assert opened.settings.data == (tmp_path / "data").resolve()
    assert (opened.settings.policy.epsilon, opened.settings.policy.delta) == (2.0, 1e-6)
    assert opened.settings.policy.min_cohort == 9.0
    assert not opened.settings.policy.allow_seeded
    with opened.ledger() as ledger:
        assert [entry.kind for entry in ledger.entries()] == ["ledger_opened"]


@pytest.mark.parametrize("name", ["daten ü", 'with "quotes"', "back\\slash", "emoji \U0001f600", "tab\there"])
def test_the_folder_of_the_samples_may_have_any_name(tmp_path: Path, name: str) -> None:
    made = make_silo(tmp_path / "silo", "bank", tmp_path / name, epsilon=1, delta=1e-5)
    assert made.settings.data == (tmp_path / name).resolve()


def test_a_silo_is_never_made_twice(tmp_path: Path) -> None:
    make_silo(tmp_path / "silo", "bank", tmp_path / "data", epsilon=1, delta=1e-5)
    before = (tmp_path / "silo" / "silo.toml").read_bytes()
    with pytest.raises(SiloError, match="never replaced"):
        make_silo(tmp_path / "silo", "bank", tmp_path / "data", epsilon=9, delta=1e-5)
    assert (tmp_path / "silo" / "silo.toml").read_bytes() == before


@pytest.mark.parametrize(("epsilon", "name"), [(-1.0, "bank"), (float("nan"), "bank"), (1.0, "no spaces"), (1.0, "")])
def test_a_wrong_setting_leaves_nothing_behind(tmp_path: Path, epsilon: float, name: str) -> None:
    with pytest.raises(SiloError, match=r"silo\.toml"):
        make_silo(tmp_path / "silo", name, tmp_path / "data", epsilon=epsilon, delta=1e-5)
    assert not (tmp_path / "silo").exists()
    make_silo(tmp_path / "silo", "bank", tmp_path / "data", epsilon=1.0, delta=1e-5)


def test_a_silo_is_made_with_an_identity_of_its_own_that_signs_its_ledger(tmp_path: Path) -> None:
    made = make_silos([tmp_path / "a", tmp_path / "b"], tmp_path / "silos", epsilon=1, delta=1e-5)
    assert made[0].identity.public_key != made[1].identity.public_key
    for home in made:
        assert stat.S_IMODE((home.root / "identity.key").stat().st_mode) == 0o600
        public = read_public_key(home.root / "identity.pub")
        assert public == home.identity.public_key
        assert verify(home.root / "ledger.jsonl", home.root / "ledger.anchor", public).signer_given
        secret = home.identity._private.private_bytes_raw()
        assert secret.hex() not in repr(home)
        assert repr(secret)[2:-1] not in repr(home)


@pytest.mark.parametrize("left", ["identity.key", "identity.pub", "ledger.jsonl", "ledger.anchor"])
def test_the_rest_of_a_silo_is_never_replaced(tmp_path: Path, left: str) -> None:
    (tmp_path / "silo").mkdir()
    (tmp_path / "silo" / left).write_bytes(b"kept")
    with pytest.raises(SiloError, match=f"{left}.*never replaced.*restore"):
        make_silo(tmp_path / "silo", "bank", tmp_path / "data", epsilon=1, delta=1e-5)
    assert [path.name for path in (tmp_path / "silo").iterdir()] == [left]
    assert (tmp_path / "silo" / left).read_bytes() == b"kept"


def test_a_simulated_federation_gets_numbered_silos(tmp_path: Path) -> None:
    made = make_silos([tmp_path / "a", tmp_path / "b"], tmp_path / "silos", epsilon=1, delta=1e-5)
    assert [home.root.name for home in made] == ["silo-00", "silo-01"]
    assert [home.settings.name for home in made] == ["silo-00", "silo-01"]
    assert [home.settings.data for home in made] == [(tmp_path / "a").resolve(), (tmp_path / "b").resolve()]
