"""The group figure of the summary covers every release of the run over training records."""

from pathlib import Path
from typing import Any

import pytest

import server_app.app
from privacy.release import SAMPLES_PER_BAR
from server_app.app import Opened
from server_app.config import RunConfig
from server_app.run_folder import RunFolder
from server_app.run_settings import settings_of


def test_every_release_of_moments_is_in_the_group_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose epoch was abandoned: the silos released it."""
    config = RunConfig.from_mapping({"dp.scaling-share": 0.1, "rounds": 2, "local.backtracks": 3})
    settings = settings_of(config, bytes(16))
    folder = RunFolder.create(tmp_path / "run", config, settings.terms.to_bytes())
    for epoch, purpose in enumerate(("scale", "scale", "train", "train", "evaluate"), start=1):
        folder.add_row({"epoch": epoch, "purpose": purpose})
    priced: dict[str, Any] = {}

    def epsilon_group(*given: object, **named: object) -> float:
        priced.update(given=given, **named)
        return 1.5

    monkeypatch.setattr(server_app.app, "epsilon_group", epsilon_group)
    assert server_app.app._group(Opened(folder, settings)) == {"records": SAMPLES_PER_BAR, "epsilon": 1.5}
    terms = settings.terms
    assert priced["given"] == (terms.sampling_rate, terms.sigma_min, 2 * (5 + 3), terms.delta, SAMPLES_PER_BAR)
    assert priced["unsampled"] == [terms.scaling_noise] * 2
