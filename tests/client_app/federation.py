"""Small federations that the tests write themselves: few records, a narrow model, everything in one process."""

import functools
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from numpy.typing import NDArray

import client_app.app
from client_app.home import Reply, SiloHome
from client_app.privacy_book import PrivacyBook
from client_app.silo import Silo
from data_prep.features.table import N_FEATURES
from data_prep.shard_writer import write_shard
from data_prep.shards import Split
from experiments.local_grid import LocalGrid, no_fault
from experiments.silos import write_roster
from fcfl_strategy import rounds
from fcfl_strategy.rounds import RunState
from fcfl_strategy.settings import Settings
from fcfl_strategy.strategy import FcflStrategy
from privacy.mlp import Mlp
from privacy.records import Release, RunClosed, RunOpened, parse
from privacy.release import ReleasePlan
from secagg import coordinator
from secagg.envelopes import CloseRequest, JoinRequest, MaskReply, MaskRequest, UnmaskCall
from secagg.layout import layout_for
from secagg.messages import (
    PROTOCOL_VERSION,
    Announcement,
    Bundle,
    Enrolment,
    EpochOutcome,
    MaskedInput,
    Roster,
    RosterEntry,
    Run,
    UnmaskRequest,
    UnmaskShares,
)
from secagg.ring import decode_sum
from secagg.signatures import sign_masked
from server_app import run_settings
from server_app.app import open_run
from server_app.config import RunConfig
from server_app.observer import RunObserver
from server_app.run_settings import initial_weights, settings_of

HIDDEN = (6,)
PARAMETERS = Mlp(N_FEATURES, HIDDEN).size
RUN_ID = bytes(range(16))


cached_calibrate = functools.cache(run_settings.calibrate)


def make_light(patch: pytest.MonkeyPatch, hidden: tuple[int, ...] = HIDDEN) -> None:
    """Let runs use a model of a few hundred parameters, calibrate once, and not wait for the disk."""
    patch.setattr(run_settings, "HIDDEN", hidden)
    patch.setattr(run_settings, "calibrate", cached_calibrate)
    patch.setattr(os, "fsync", lambda handle: None)


def write_samples(folder: Path, records: int, seed: int, *, validation: int = 24, test: int = 16) -> Path:
    """Write one silo's samples."""
    generator = np.random.default_rng(seed)

    def split(rows: int) -> Split:
        features = generator.normal(size=(rows, N_FEATURES)).clip(-3, 3)
        truth = 0.002 * features[:, 0]
        targets = truth / 0.01 + generator.normal(size=rows)
        return Split(
            features=features.astype(np.float32),
            targets=targets.clip(-5, 5).astype(np.float32),
            truth=truth.astype(np.float32),
            dates=np.arange(rows, dtype=np.int32),
            instruments=np.zeros(rows, dtype=np.int32),
        )

    folder.mkdir(parents=True)
    splits = {"train": split(records), "validation": split(validation), "test": split(test)}
    write_shard(folder, splits, {"target_scale": 0.01, "first_date": "2015-01-02", "last_date": "2024-12-31"})
    return folder


def silo_toml(name: str, data: Path, *, roster: str = "../roster.toml", **policy: Any) -> str:
    """Text of a ``silo.toml`` whose policy admits the runs of these tests unless a limit is given."""
    limits = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "min_cohort": 1.0,
        "min_enrolment": 3,
        "allow_seeded": True,
        "allow_metrics": True,
        "hidden": list(HIDDEN),
    } | policy
    lines = [f"{key} = {json.dumps(value)}" for key, value in limits.items()]
    pins = f"roster = {json.dumps(roster)}\n" if roster else ""
    silo = f"[silo]\nname = {json.dumps(name)}\ndata = {json.dumps(str(data))}\n{pins}"
    return silo + "\n[policy]\n" + "\n".join(lines) + "\n"


def name_of(number: int) -> str:
    return f"silo-{number:02d}"


def records_of(home: SiloHome) -> list[RunOpened | Release | RunClosed]:
    """What a silo's ledger says."""
    with home.ledger() as ledger:
        found = [parse(entry.kind, entry.body) for entry in ledger.entries()]
    return [record for record in found if record is not None]


def releases_of(home: SiloHome) -> list[Release]:
    return [record for record in records_of(home) if isinstance(record, Release)]


@dataclass
class Small:
    """``n`` silo folders under one root, as the simulation engine would find them."""

    root: Path
    homes: dict[str, SiloHome]

    @classmethod
    def make(
        cls,
        root: Path,
        n: int,
        *,
        records: Sequence[int] | None = None,
        policies: Mapping[int, Mapping[str, Any]] | None = None,
        names: Sequence[str] | None = None,
        **policy: Any,
    ) -> "Small":
        homes = {}
        doubled = names is not None and len(set(names)) < len(names)
        free = {"roster": "", "allow_unpinned": True} if doubled else {}
        for i in range(n):
            size = records[i] if records is not None else 100 + 10 * i
            data = write_samples(root / "samples" / name_of(i), size, seed=i)
            limits = {**policy, **(policies or {}).get(i, {})}
            name = names[i] if names is not None else name_of(i)
            homes[name_of(i)] = SiloHome.create(root / "silos" / name_of(i), silo_toml(name, data, **free, **limits))
        # Names that are no rosters (two silos of one name) are not pinned; those tests are about the coordinator.
        pins = {home.settings.name: home for home in homes.values()}
        write_roster(root / "silos" / "roster.toml", pins.values())
        return cls(root, homes)

    def config(self, **settings: Any) -> RunConfig:
        """A configuration in which every silo takes part, with short deadlines; keys as in the configuration."""
        given = {
            "silos": len(self.homes),
            "rounds": 2,
            "local.steps": 1,
            "participation.cohort": float(len(self.homes)),
            "participation.min-probability": 1.0,
            "simulation-root": str(self.root / "silos"),
            "deadline.poll": 0.002,
            "deadline.enrol": 2.0,
            "deadline.train": 20.0,
            "deadline.unmask": 20.0,
        }
        return RunConfig.from_mapping(given | settings)

    def grid(
        self,
        config: RunConfig,
        *,
        fault: Callable[[Message], Any] = no_fault,
        observe: Callable[[Message], None] | None = None,
        nodes: int | None = None,
    ) -> LocalGrid:
        return LocalGrid(
            client_app.app.app, nodes or len(self.homes), dict(config.values), fault=fault, observe=observe
        )


@dataclass
class Conducted:
    """A run that came to its end, or to its error."""

    strategy: FcflStrategy
    path: Path

    @property
    def history(self) -> list[dict[str, Any]]:
        lines = (self.path / "history.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def conduct(
    grid: LocalGrid, config: RunConfig, path: Path, watch: Callable[[FcflStrategy], None] = lambda strategy: None
) -> Conducted:
    """What `server_app.app.conduct` does, without the report; ``watch`` gets the strategy before it starts."""
    run = open_run(config, path)
    with RunObserver.open(run.folder, run.settings) as observer:
        strategy = FcflStrategy(run.settings, run.folder.journal, observer)
        watch(strategy)
        strategy.start(grid, ArrayRecord({"weights": Array(initial_weights(config))}))
        observer.close(strategy.outcome)
    return Conducted(strategy, path)


@dataclass
class Asked:
    """One announced epoch, as the silos are asked for it."""

    announcement: Announcement
    bodies: dict[str, bytes]
    arrays: dict[str, NDArray[np.float32]]
    bundles: dict[str, Bundle]
    masked: dict[str, MaskedInput] = field(default_factory=dict)


@dataclass
class Desk:
    """A coordinator at the level of bytes: it talks to silos directly and opens them anew for every request."""

    small: Small
    config: RunConfig
    settings: Settings = field(init=False)
    state: RunState = field(init=False)
    run: Run = field(init=False)
    records: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.settings = settings_of(self.config, RUN_ID)

    def silo(self, name: str) -> Silo:
        return client_app.app.open_silo(self.small.homes[name].root)

    def enrol(self) -> None:
        body = self.settings.terms.to_bytes()
        found = [Enrolment.from_bytes(self.silo(name).enrol(body).body) for name in self.small.homes]
        roster = Roster(tuple(RosterEntry.of(e) for e in sorted(found, key=lambda e: e.silo_id)))
        self.run = Run(PROTOCOL_VERSION, RUN_ID, roster, roster.threshold, 0)
        self.records = {enrolment.silo_id: enrolment.records for enrolment in found}
        self.state = rounds.first_state(self.settings, initial_weights(self.config), self.records)

    def join(self, name: str, epoch: int) -> Bundle:
        return Bundle.from_bytes(self.silo(name).join(JoinRequest(self.run, epoch).to_bytes()).body)

    def plan(self, purpose: str = "train") -> ReleasePlan:
        make = rounds.plan_training if purpose == "train" else rounds.plan_evaluation
        return make(self.settings, self.state, self.records)

    def ask(
        self,
        epoch: int,
        *,
        plan: ReleasePlan | None = None,
        outcomes: tuple[EpochOutcome, ...] = (),
        heads: Mapping[str, bytes] | None = None,
    ) -> Asked:
        """Collect bundles and announce an epoch."""
        plan = plan or self.plan()
        bundles = {name: self.join(name, epoch) for name in self.small.homes}
        layout = layout_for(
            ((b.name, b.length, b.bits, b.bound) for b in plan.bounds(self.settings.terms)), len(bundles)
        )
        made = coordinator.announce(self.run, epoch, bundles, layout, plan.to_bytes(), outcomes, heads)
        publics = tuple(bundles[name].public for name in made.ids)
        bodies = {
            name: MaskRequest(made, publics, coordinator.ciphertexts_for(bundles, name)).to_bytes() for name in bundles
        }
        point, control = rounds.broadcast(self.settings, self.state, self.records)
        return Asked(made, bodies, {"point": point, "control": control}, bundles)

    def contribute(self, asked: Asked, name: str) -> Reply:
        reply = self.silo(name).contribute(asked.bodies[name], asked.arrays)
        asked.masked[name] = masked_of(reply)
        return reply

    def unmask(self, asked: Asked, name: str, survivors: Sequence[str]) -> bytes:
        return self.silo(name).unmask(self.call(asked, survivors).to_bytes()).body

    def call(self, asked: Asked, survivors: Sequence[str]) -> UnmaskCall:
        """Ask for the sum over these; who sent no vector signs the header of one, as a silo that lies would."""
        request = coordinator.unmask_request(self.run, asked.announcement, survivors)
        return UnmaskCall.of(
            request, {name: asked.masked.get(name) or self._pretended(asked, name) for name in survivors}
        )

    def _pretended(self, asked: Asked, name: str) -> MaskedInput:
        home, made = self.small.homes[name], asked.announcement
        with home.ledger() as ledger:
            head = PrivacyBook(ledger).head_after(())
        return sign_masked(self.run, MaskedInput(name, made.epoch, made.digest(), {}, head, bytes(32)), home.identity)

    def sum_of(self, asked: Asked, replies: Mapping[str, Reply]) -> dict[str, NDArray[np.float64]]:
        """Unmask and decode the sum of the replies' vectors."""
        masked = {name: masked_of(reply) for name, reply in replies.items()}
        shares = {name: UnmaskShares.from_bytes(self.unmask(asked, name, sorted(masked))) for name in masked}
        publics = tuple(asked.bundles[name].public for name in asked.announcement.ids)
        totals = coordinator.aggregate(self.run, asked.announcement, publics, masked, shares)
        return dict(decode_sum(asked.announcement.layout, totals))

    def unmask_request(self, asked: Asked, survivors: Sequence[str]) -> UnmaskRequest:
        return coordinator.unmask_request(self.run, asked.announcement, survivors)

    def close(self, name: str) -> None:
        self.silo(name).close(CloseRequest(RUN_ID).to_bytes())

    def folder(self, name: str) -> Path:
        return self.small.homes[name].root / "runs" / RUN_ID.hex()


def masked_of(reply: Reply) -> MaskedInput:
    header = MaskReply.from_bytes(reply.body).header
    return MaskedInput.from_parts(header.to_bytes(), reply.arrays)


def same_reply(one: Reply, other: Reply) -> bool:
    """Whether two replies put identical bytes on the wire."""
    return one.body == other.body and {n: (a.dtype.str, a.tobytes()) for n, a in one.arrays.items()} == {
        n: (a.dtype.str, a.tobytes()) for n, a in other.arrays.items()
    }


def quiet() -> None:
    """Keep expected warnings out of the test output."""
    logging.getLogger("fcfl.coordinator").setLevel(logging.ERROR)
