"""Make the silo folders of a simulated federation, each with its own policy and ledger."""

from collections.abc import Sequence
from pathlib import Path

from client_app.home import SiloHome

TEMPLATE = """\
[silo]
name = "{name}"
data = "{data}"

[policy]
epsilon = {epsilon}
delta = {delta}
min_cohort = {min_cohort}
min_enrolment = {min_enrolment}
allow_seeded = {allow_seeded}
"""


def make_silos(
    shards: Sequence[Path],
    root: Path,
    *,
    epsilon: float,
    delta: float,
    min_cohort: float = 2.0,
    min_enrolment: int = 3,
    allow_seeded: bool = False,
) -> list[SiloHome]:
    """Create ``root/silo-00`` and so on, one for each folder of samples.

    Parameters
    ----------
    shards : sequence of Path
        Folders written by `data_prep.prepare`.
    root : Path
        Where the silos' folders go; none may exist yet.
    epsilon, delta : float
        Budget of each silo's data set.
    min_cohort, min_enrolment, allow_seeded
        Policy of every silo.
    """
    homes = []
    for number, shard in enumerate(shards):
        name = f"silo-{number:02d}"
        text = TEMPLATE.format(
            name=name,
            data=str(shard.resolve()).replace("\\", "\\\\").replace('"', '\\"'),
            epsilon=repr(epsilon),
            delta=repr(delta),
            min_cohort=repr(min_cohort),
            min_enrolment=min_enrolment,
            allow_seeded=str(allow_seeded).lower(),
        )
        homes.append(SiloHome.create(root / name, text))
    return homes
