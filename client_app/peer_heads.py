"""The ledger heads of the other silos, as they signed them: a silo whose ledger falls back is not helped to release.

A restored backup spends again what was spent. Its owner may not know, and the coordinator may keep quiet; the others
remember. ``peers.heads`` in the silo's folder has the highest head of every identity in all runs. What is known when a
run begins is copied into its folder, and only heads of that run are compared with it: another run may go on at the same
time, and its heads come in no order with these. Whatever a silo knew when it joined, its peers had signed before; from
then on the heads of one run grow from epoch to epoch, since every vector is in its owner's ledger. Who fell back once
is not trusted again: refused epochs are in its ledger too, which would soon be longer than it ever was.
"""

from collections.abc import Iterable, Mapping

import cbor2

from client_app.errors import Declined, SiloError
from client_app.home import RunFolder, SiloHome, write_atomic
from secagg.messages import MAX_EPOCH, MaskedHeader
from secagg.roster import Roster

FILE, IN_RUN = "peers.heads", "heads"
FELL_BACK = MAX_EPOCH
"""Entries noted for a silo that fell back: no ledger ever has more."""

Heads = Mapping[bytes, tuple[int, bytes]]
"""Entries and hash of the last one, by identity key."""


def begin(home: SiloHome, folder: RunFolder) -> None:
    """Keep with a run what is known before it, once; called before the silo's first bundle of the run."""
    if folder.get(IN_RUN) is None:
        folder.put(IN_RUN, cbor2.dumps(_known(home)))


def remember(home: SiloHome, folder: RunFolder, roster: Roster, headers: Iterable[MaskedHeader]) -> None:
    """Note the heads of an epoch's vectors durably, or decline if one of them is behind what its owner signed before.

    Parameters
    ----------
    headers : iterable of MaskedHeader
        Their signatures were checked.

    Raises
    ------
    Declined
        Naming the silo whose ledger is shorter than it was, or as long and another: it was put back from a copy, or two
        copies of the silo are running. No share is given for a sum with its vectors from then on.
    SiloError
        If the file is damaged.
    """
    shown = {roster.entry(h.sender).identity_key: (h.sender, h.ledger_head) for h in headers}
    before = _parse(folder.get(IN_RUN), f"{folder.path / IN_RUN}")
    for identity, (sender, head) in shown.items():
        known = before.get(identity, head)
        if head[0] < known[0] or (head[0] == known[0] and head != known):
            _note(home, folder, before, {identity: (FELL_BACK, known[1])})
            has = "another or a longer one" if known[0] == FELL_BACK else f"another or a longer one, with {known[0]}"
            raise Declined(
                f"{sender}: its ledger has {head[0]} entries, and it signed {has}: put back from a copy, or running "
                "twice. No sum with its vectors is opened. Leave it out of the roster or, once this is explained, "
                f"remove {home.root / FILE} and {folder.path / IN_RUN}"
            )
    _note(home, folder, before, {identity: head for identity, (_, head) in shown.items()})


def _note(home: SiloHome, folder: RunFolder, before: Heads, heads: Heads) -> None:
    write_atomic(home.root / FILE, cbor2.dumps(_later(_known(home), heads)))
    folder.put(IN_RUN, cbor2.dumps(_later(before, heads)))


def _later(known: Heads, heads: Heads) -> Heads:
    return {**known, **{i: max(head, known.get(i, head), key=lambda pair: pair[0]) for i, head in heads.items()}}


def _known(home: SiloHome) -> Heads:
    path = home.root / FILE
    return _parse(path.read_bytes() if path.exists() else None, str(path))


def _parse(data: bytes | None, where: str) -> Heads:
    try:
        stored = {} if data is None else cbor2.loads(data)
        return {bytes(identity): (int(count), bytes(digest)) for identity, (count, digest) in stored.items()}
    except (cbor2.CBORDecodeError, ValueError, TypeError, AttributeError):
        raise SiloError(
            f"{where}: damaged; restore it from a copy, or remove it to begin without a memory of other silos' ledgers"
        ) from None
