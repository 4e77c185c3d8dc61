"""Make silo folders: a ``silo.toml`` with the policy, an identity, and an empty ledger signed by it; and rosters."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from client_app.home import SiloHome, write_atomic
from secagg.pins import HEADER, Pin

TEMPLATE = """\
[silo]
name = {name}
data = {data}
# The silos this one will share a run with, and their identity keys: 'fcfl roster', docs/operations.md.
roster = {roster}

# What this silo is willing to do; a request outside is declined before any record is touched.
[policy]
epsilon = {epsilon}
delta = {delta}
min_cohort = {min_cohort}
min_enrolment = {min_enrolment}
allow_seeded = {allow_seeded}
allow_metrics = {allow_metrics}
allow_unpinned = false
"""


def make_silo(
    folder: Path,
    name: str,
    data: Path,
    *,
    epsilon: float,
    delta: float,
    min_cohort: float = 8.0,
    min_enrolment: int = 10,
    allow_seeded: bool = False,
    allow_metrics: bool = False,
    roster: str = "roster.toml",
) -> SiloHome:
    """Make one silo folder.

    Parameters
    ----------
    folder : Path
        Folder to make.
    name : str
        Name in the roster.
    data : Path
        Folder of its samples.
    epsilon, delta : float
        Budget of the data set over all runs.
    min_cohort, min_enrolment, allow_seeded, allow_metrics
        See `client_app.policy.Policy`.
    roster : str
        Path of the pinned roster, from the silo's folder; the silo enrols once the file is there with the silo in it.

    Raises
    ------
    client_app.errors.SiloError
        If the folder already holds a silo, or a value is out of range.
    """
    text = TEMPLATE.format(
        # A JSON string is a TOML string as long as nothing is escaped as a pair of surrogates.
        name=json.dumps(name, ensure_ascii=False),
        data=json.dumps(str(data.resolve()), ensure_ascii=False),
        roster=json.dumps(roster, ensure_ascii=False),
        epsilon=float(epsilon),
        delta=float(delta),
        min_cohort=float(min_cohort),
        min_enrolment=min_enrolment,
        allow_seeded=str(allow_seeded).lower(),
        allow_metrics=str(allow_metrics).lower(),
    )
    return SiloHome.create(folder, text)


def make_silos(
    shards: Sequence[Path], root: Path, *, epsilon: float, delta: float, allow_seeded: bool = False
) -> list[SiloHome]:
    """Make ``root/silo-00`` and so on, one for each folder of samples, for a simulated federation.

    Their policy asks for little company and allows unprotected metrics, so that small federations can be tried out.
    All pin each other by ``root/roster.toml``, which this writes.
    """
    homes = [
        make_silo(
            root / f"silo-{number:02d}",
            f"silo-{number:02d}",
            shard,
            epsilon=epsilon,
            delta=delta,
            min_cohort=1.0,
            min_enrolment=3,
            allow_seeded=allow_seeded,
            allow_metrics=True,
            roster="../roster.toml",
        )
        for number, shard in enumerate(shards)
    ]
    write_roster(root / "roster.toml", homes)
    return homes


def write_roster(path: Path, homes: Iterable[SiloHome]) -> None:
    """Write a ``roster.toml`` of silos whose folders are all here, as only a simulation has them."""
    pins = (Pin(home.settings.name, home.identity.public_key) for home in homes)
    write_atomic(path, (HEADER + "".join(pin.render() for pin in pins)).encode())
