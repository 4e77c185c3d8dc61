"""The silo's own folder and machine: settings, identity, ledger, roster, samples, disk, software, certificates."""

import os
import platform
import shutil
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from cryptography import x509

from client_app.contribution import Sample
from client_app.errors import Declined, SiloError
from client_app.home import SiloHome, write_atomic
from client_app.node.errors import NodeError
from client_app.node.fleet import check_flower
from client_app.node.settings import Connection, load_authority, load_node_key
from client_app.pinned_roster import pinned
from client_app.policy import SiloSettings, load_settings
from data_prep.errors import DataError
from data_prep.shards import open_shard
from experiments.silo_check.budget import read_budget
from experiments.silo_check.findings import Finding, failed, guarded, ok, warning
from privacy.errors import PrivacyError
from privacy.signing import SigningKey
from secagg.messages import PROTOCOL_VERSION

LITTLE_SPACE, NO_SPACE = 2 << 30, 256 << 20
SOON_DAYS = 30
RISKY = {
    "allow_seeded": "a seeded run is not private",
    "allow_metrics": "exact metrics of validation and test records may leave",
    "allow_unpinned": "any silo may be in a run",
    "allow_semi_honest_graph": "masks may rely on an honest coordinator",
}


def check_folder(home: Path) -> list[Finding]:
    """Check everything that needs no network.

    Parameters
    ----------
    home : Path
        The silo's folder.
    """
    found = [guarded("settings", lambda: _settings(load_settings(home / "silo.toml")), SiloError)]
    found.append(guarded("identity", lambda: _identity(home), PrivacyError))
    try:
        silo = SiloHome.open(home)
    except (SiloError, PrivacyError):
        silo = None
    if silo is not None:
        opened = silo
        found += [
            guarded("ledger", lambda: _ledger(opened), PrivacyError),
            guarded("roster", lambda: _roster(opened), SiloError, Declined),
            guarded("samples", lambda: _samples(opened.settings), DataError),
        ]
    return [*found, guarded("disk", lambda: _disk(home)), guarded("software", _software, NodeError)]


def check_keys(connection: Connection) -> list[Finding]:
    """Check the authority's certificates and the node's key."""

    def key() -> Finding:
        load_node_key(connection.node_key)
        return ok("node key", "ECDSA P-384, readable by its owner only")

    return [
        guarded("authority", lambda: _authority(connection.root_certificates, datetime.now(UTC)), NodeError),
        guarded("node key", key, NodeError),
    ]


def _settings(settings: SiloSettings) -> Finding:
    policy = settings.policy
    text = f"{settings.name}: epsilon {policy.epsilon:g}, delta {policy.delta:g}, at least {policy.min_enrolment} silos"
    if risky := [f"{switch} ({why})" for switch, why in RISKY.items() if getattr(policy, switch)]:
        return warning("settings", f"{text}; allowed: {', '.join(risky)}", "set to false in silo.toml unless agreed")
    return ok("settings", text)


def _identity(home: Path) -> Finding:
    return ok("identity", f"{SigningKey.load(home / 'identity.key').fingerprint}, readable by its owner only")


def _ledger(silo: SiloHome) -> Finding:
    budget = read_budget(silo.root, silo.settings, silo.identity.public_key)
    summary = budget.summary
    text = (
        f"{summary.count} entries as anchored, {len(summary.runs)} runs; epsilon spent {budget.spent:.4g}, "
        f"granted {budget.granted:.4g}, left {budget.left:.4g} of {budget.total:g}"
    )
    if summary.notice:
        return warning(
            "ledger", f"{text}; {summary.notice}", "none if the machine lost power; it is repaired when opened"
        )
    if not summary.private:
        return warning("ledger", f"{text}; a run was seeded: it is not private", "see allow_seeded in silo.toml")
    if not summary.one_adjacency:
        return warning("ledger", f"{text}; the runs protect unlike things", "their epsilons do not add up")
    if budget.left == 0:
        return warning("ledger", text, "this silo declines every further run; other data needs a silo of its own")
    return ok("ledger", text)


def _roster(silo: SiloHome) -> Finding:
    roster = pinned(silo)
    if roster is None:
        return warning("roster", "none is pinned", "agree on a roster ('fcfl roster'), set allow_unpinned = false")
    size, least = len(roster.pins), silo.settings.policy.min_enrolment
    text = f"{size} silos pinned, this one with its own identity"
    if size < least:
        return failed(
            "roster", f"{text}; policy.min_enrolment is {least}", "wait for the others' enrolment, or lower the policy"
        )
    return ok("roster", text)


def _samples(settings: SiloSettings) -> Finding:
    shard = open_shard(settings.data, verify=True)
    counts = ", ".join(f"{len(getattr(shard, split).targets)} {split}" for split in ("train", "validation", "test"))
    text = f"{counts}; as prepared, fingerprint {Sample(shard).fingerprint.hex()[:16]}"
    if not len(shard.train.targets):
        return failed("samples", text, "prepare samples with 'fcfl data prepare'")
    return ok("samples", text)


def _disk(home: Path) -> Finding:
    probe = home / f".check-{os.getpid()}"
    try:
        write_atomic(probe, bytes(4096))
    finally:
        probe.unlink(missing_ok=True)
        probe.with_name(probe.name + ".tmp").unlink(missing_ok=True)
    free = shutil.disk_usage(home).free
    text = f"{free / 2**30:.1f} GiB free; a file was written, synchronised and renamed"
    if free < NO_SPACE:
        return failed(
            "disk", text, f"make room: the ledger must never meet a full disk (at least {NO_SPACE >> 20} MiB)"
        )
    if free < LITTLE_SPACE:
        return warning("disk", text, "make room")
    return ok("disk", text)


def _software() -> Finding:
    check_flower()
    text = f"fcfl {version('fcfl')}, protocol {PROTOCOL_VERSION}, flwr {version('flwr')}, torch {version('torch')}"
    return ok("software", f"{text}, Python {platform.python_version()}")


def _authority(path: Path, now: datetime) -> Finding:
    days = [
        (certificate.not_valid_after_utc - now).days
        for certificate in x509.load_pem_x509_certificates(load_authority(path))
        if certificate.not_valid_before_utc <= now
    ]
    if not days or max(days) < 0:
        return failed("authority", f"{path}: no certificate is valid today", "look at the clock; ask for another kit")
    text = f"{path.name} is good for {max(days)} days"
    if max(days) < SOON_DAYS:
        return warning("authority", text, "ask the operator for the next authority (docs/provisioning.md)")
    return ok("authority", text)
