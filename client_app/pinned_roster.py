"""Which silos this one will share a run with: the pinned roster of its ``silo.toml``, and the check of a run's roster.

Without a pinned roster a coordinator could fill the run with silos of its own; a silo then takes part only if its
policy says ``allow_unpinned = true``.
"""

from pathlib import Path

from client_app.errors import Declined, SiloError
from client_app.home import SiloHome
from secagg.errors import RosterFileError
from secagg.pins import PinnedRoster
from secagg.roster import Roster
from secagg.signatures import check_roster

UNPINNED = "no pinned roster (silo.roster in silo.toml), and policy.allow_unpinned is false"


def load(path: Path) -> PinnedRoster:
    """Read a ``roster.toml``.

    Raises
    ------
    SiloError
        Naming the file and what is wrong with it.
    """
    try:
        return PinnedRoster.parse(path.read_bytes().decode(), str(path))
    except FileNotFoundError:
        raise SiloError(
            f"{path}: not found; put the federation's roster there ('fcfl roster', docs/operations.md)"
        ) from None
    except OSError as error:
        raise SiloError(f"{path}: cannot be read ({error.strerror}); check its rights") from None
    except UnicodeDecodeError:
        raise SiloError(f"{path}: not valid TOML: not UTF-8") from None
    except RosterFileError as error:
        raise SiloError(str(error)) from None


def pinned(home: SiloHome) -> PinnedRoster | None:
    """Return the silo's pinned roster, with the silo itself in it; None if it has none and its policy allows that.

    Asked before a run is agreed to, so that no budget is granted to a run that this silo would not join.

    Raises
    ------
    Declined
        If there is none and the policy wants one.
    SiloError
        If the file is missing or malformed, or lists this silo not at all or with another key.
    """
    path = home.settings.roster
    if path is None:
        if not home.settings.policy.allow_unpinned:
            raise Declined(UNPINNED)
        return None
    roster = load(path)
    if roster.identity(home.settings.name) != home.identity.public_key:
        raise SiloError(
            f"{path}: does not list {home.settings.name} (this silo) with its own identity {home.identity.fingerprint}"
        )
    return roster


def check_peers(home: SiloHome, shown: Roster) -> None:
    """Decline a roster with a silo that is not pinned with exactly the identity key it shows.

    Called whenever bundles or vectors are asked for, so that a silo taken out of the file is out at once.

    Raises
    ------
    Declined, SiloError
        As `pinned`.
    secagg.errors.ProtocolError
        Naming the silo that is not pinned.
    """
    roster = pinned(home)
    if roster is not None:
        roster.check(shown.entries)


def check_shown(home: SiloHome, encryption_key: bytes, run_id: bytes, shown: Roster) -> None:
    """Decline a roster this silo should not share secrets with.

    Raises
    ------
    Declined
        If it lists other keys under this silo's name, or is smaller than the policy wants.
    secagg.errors.ProtocolError
        If an entry is not signed by its own identity for this run, or not pinned.
    """
    entry = shown.entry(home.settings.name)
    if (entry.encryption_key, entry.identity_key) != (encryption_key, home.identity.public_key):
        raise Declined("the roster lists another key under this silo's name")
    check_roster(run_id, shown)
    check_peers(home, shown)
    if len(shown.entries) < home.settings.policy.min_enrolment:
        raise Declined(f"{len(shown.entries)} silos enrolled, fewer than policy.min_enrolment")
