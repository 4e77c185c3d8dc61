"""One secure sum over Flower messages: announce, collect masked vectors, fix the survivors, unmask.

The coordinator makes the announcement, every masked vector, every bundle and the list of survivors durable
before it uses them, so that a resumed coordinator repeats the same requests and the silos' outboxes
answer them.
"""

import logging
from collections.abc import Collection, Iterable, Mapping

import cbor2
import numpy as np
from flwr.app import Message

from fcfl_strategy.exchange import Answer, arrays_record, request
from fcfl_strategy.journal import Journal
from secagg import coordinator
from secagg.arrays import Arrays, dump
from secagg.envelopes import JoinRequest, MaskReply, MaskRequest, UnmaskCall
from secagg.errors import SecAggError
from secagg.messages import Announcement, Bundle, EpochOutcome, MaskedInput, Run, UnmaskRequest, UnmaskShares
from secagg.ring import Layout, decode_sum

logger = logging.getLogger("fcfl.coordinator")

CONTROL_LOST = 3
"""Code of a silo that cannot go on before all controls are reset."""
JOIN, CONTRIBUTE, UNMASK = "query.join", "train", "query.unmask"


class Federation:
    """The enrolled silos of a run and the nodes they answer from.

    Parameters
    ----------
    run : Run
    nodes : mapping of str to int
        Node of each silo that can be reached.
    journal : Journal
    """

    def __init__(self, run: Run, nodes: Mapping[str, int], journal: Journal) -> None:
        self.run = run
        self.nodes = dict(nodes)
        self.silos = {node: silo for silo, node in nodes.items()}
        self.journal = journal
        self.strangers: set[int] = set()
        """Nodes that answered and are of no silo of this run."""

    def add(self, silo: str, node: int) -> None:
        """Note from which node a silo answers that was away when the run was taken up."""
        self.nodes[silo], self.silos[node] = node, silo

    def would_do(self, participants: Collection[str], held: Collection[str], lost: Iterable[int]) -> bool:
        """Whether what is held is too little for a safe sum, and the lost nodes' parts would make it enough."""
        more = {*held, *(self.silos[node] for node in lost)}
        return bool(self.run.shortage(participants, set(held))) and not self.run.shortage(participants, more)

    def name(self, epoch: int, kind: str, silo: str) -> str:
        """Journal name of what one silo sent."""
        return f"{epoch:08d}.{kind}.{self.run.roster.index(silo):05d}"

    def bundles(self, epoch: int) -> dict[str, Bundle]:
        """Bundles for ``epoch`` received so far."""
        found = (self.journal.get(name) for name in self.journal.names(f"{epoch:08d}.bundle."))
        bundles = (Bundle.from_bytes(data) for data in found if data is not None)
        return {bundle.public.sender: bundle for bundle in bundles}

    def keep_bundle(self, silo: str, epoch: int, bundle: Bundle) -> None:
        """Make a bundle durable; one for another epoch or sender is refused."""
        if bundle.public.sender != silo:
            raise SecAggError(f"{silo}: sent the bundle of {bundle.public.sender}")
        coordinator.check_bundle(self.run, bundle, epoch)
        self.journal.put(self.name(epoch, "bundle", silo), bundle.to_bytes())

    def join_requests(self, epoch: int, silos: set[str], ttl: float) -> list[Message]:
        """Ask silos for their bundle of ``epoch``."""
        if not silos:
            return []
        body = JoinRequest(self.run, epoch).to_bytes()
        return [request(JOIN, self.nodes[silo], body, ttl=ttl, group=str(epoch)) for silo in sorted(silos)]

    def receive_bundle(self, answer: Answer, epoch: int) -> None:
        """Take a latecomer's bundle; a bad one leaves the silo out of the epoch."""
        if answer.body is None:
            return
        try:
            self.keep_bundle(self.silos[answer.node], epoch, Bundle.from_bytes(answer.body))
        except SecAggError as error:
            logger.warning("bundle refused: %s", error)


class SecureEpoch:
    """An announced epoch.

    Parameters
    ----------
    federation : Federation
    announcement : Announcement
    """

    def __init__(self, federation: Federation, announcement: Announcement) -> None:
        self.federation = federation
        self.announcement = announcement
        self.number = announcement.epoch
        everyone = federation.bundles(self.number)
        self.bundles = {silo: everyone[silo] for silo in announcement.ids}
        self.publics = tuple(self.bundles[silo].public for silo in announcement.ids)
        self.masked: dict[str, MaskedInput] = {}
        self.shares: dict[str, UnmaskShares] = {}
        self.fixed: UnmaskRequest
        self.control_lost = False
        self.bytes_down = self.bytes_up = 0
        for silo in announcement.ids:
            stored = federation.journal.get(federation.name(self.number, "masked", silo))
            if stored is not None:
                header, arrays = cbor2.loads(stored)
                vectors = {name: np.frombuffer(data, dtype=dtype) for name, (dtype, data) in arrays.items()}
                self.masked[silo] = MaskedInput.from_parts(header, vectors)

    @classmethod
    def announce(
        cls,
        federation: Federation,
        epoch: int,
        layout: Layout,
        context: bytes,
        outcomes: tuple[EpochOutcome, ...],
        heads: Mapping[str, bytes],
    ) -> "SecureEpoch":
        """Fix A_e, durably, or take up the one fixed before a crash.

        Raises
        ------
        secagg.errors.NotEnoughSurvivors
            If too few silos have sent a bundle.
        """
        name = f"{epoch:08d}.announcement"
        stored = federation.journal.get(name)
        if stored is not None:
            return cls(federation, Announcement.from_bytes(stored))
        made = coordinator.announce(federation.run, epoch, federation.bundles(epoch), layout, context, outcomes, heads)
        federation.journal.put(name, made.to_bytes())
        return cls(federation, made)

    def mask_requests(self, arrays: Arrays, ttl: float) -> list[Message]:
        """Requests to the participants whose masked vector is not there yet; none once the survivors are fixed.

        After that a vector could not count any more and would cost its silo budget for nothing.
        """
        if self._fixed() is not None:
            return []
        asked = sorted(set(self.announcement.ids) - set(self.masked))
        encoded = dump(arrays)
        shared = arrays_record(encoded)
        messages = []
        for silo in asked:
            view = coordinator.view_for(self.federation.run, self.announcement, self.bundles, silo)
            body = MaskRequest(self.announcement, *view).to_bytes()
            self.bytes_down += len(body) + len(encoded)
            node = self.federation.nodes.get(silo)
            if node is not None:
                messages.append(request(CONTRIBUTE, node, body, ttl=ttl, group=str(self.number), arrays=shared))
        return messages

    def _fixed(self) -> bytes | None:
        return self.federation.journal.get(f"{self.number:08d}.survivors")

    def receive_masked(self, answer: Answer) -> None:
        """Take one masked vector and the silo's next bundle, durably; what does not fit counts as lost."""
        silo = self.federation.silos[answer.node]
        if answer.body is None:
            logger.warning("epoch %d: %s gave no vector (code %s)", self.number, silo, answer.code)
            self.control_lost |= answer.code == CONTROL_LOST
            return
        if self._fixed() is not None:
            logger.warning("epoch %d: the vector of %s came after the survivors were fixed", self.number, silo)
            return
        try:
            reply = MaskReply.from_bytes(answer.body)
            message = MaskedInput.from_parts(reply.header.to_bytes(), answer.arrays)
            coordinator.check_masked(self.federation.run, self.announcement, message)
            if message.sender != silo:
                raise SecAggError(f"{silo}: sent the vector of {message.sender}")
            # Every vector is in its owner's ledger, so that a later one comes with more entries.
            if message.ledger_head[0] <= int.from_bytes(self.announcement.ledger_heads.get(silo, b"")[:8], "big"):
                raise SecAggError(f"{silo}: its ledger is no longer than the one it showed before")
            self.federation.keep_bundle(silo, self.number + 1, reply.bundle)
        except SecAggError as error:
            logger.warning("epoch %d: masked vector refused: %s", self.number, error)
            return
        arrays = {name: (array.dtype.str, array.tobytes()) for name, array in message.arrays.items()}
        stored = cbor2.dumps([message.header_bytes(), arrays])
        self.federation.journal.put(self.federation.name(self.number, "masked", silo), stored)
        self.masked[silo] = message
        self.bytes_up += answer.size

    def fix_survivors(self) -> UnmaskRequest:
        """Fix L, durably: the silos whose vectors are held now, or the list fixed before a crash.

        Raises
        ------
        secagg.errors.NotEnoughSurvivors
            If too few are left.
        """
        stored = self._fixed()
        if stored is not None:
            fixed = UnmaskRequest.from_bytes(stored)
        else:
            fixed = coordinator.unmask_request(self.federation.run, self.announcement, sorted(self.masked))
            self.federation.journal.put(f"{self.number:08d}.survivors", fixed.to_bytes())
        self.masked = {silo: self.masked[silo] for silo in fixed.survivors}
        self.fixed = fixed
        return fixed

    def unmask_requests(self, asked: UnmaskRequest, ttl: float) -> list[Message]:
        """Ask the survivors for their shares, and show each what the others signed with their vectors."""
        nodes = (self.federation.nodes.get(silo) for silo in asked.survivors)
        body = UnmaskCall.of(asked, self.masked).to_bytes()
        self.bytes_down += len(body) * len(asked.survivors)
        return [request(UNMASK, node, body, ttl=ttl, group=str(self.number)) for node in nodes if node is not None]

    def receive_shares(self, answer: Answer) -> None:
        """Take one silo's shares; malformed ones count as missing."""
        silo = self.federation.silos[answer.node]
        if answer.body is None:
            logger.warning("epoch %d: %s gave no shares (code %s)", self.number, silo, answer.code)
            return
        try:
            given = UnmaskShares.from_bytes(answer.body)
            shares = coordinator.check_reply(self.federation.run, self.announcement, self.fixed, given)
            if shares.sender != silo:
                raise SecAggError(f"{silo}: sent the shares of {shares.sender}")
        except SecAggError as error:
            logger.warning("epoch %d: shares of %s refused: %s", self.number, silo, error)
            return
        self.shares[silo] = shares
        self.bytes_up += answer.size

    def sums(self) -> dict[str, np.ndarray]:
        """Return the exact sums of the survivors' vectors, decoded.

        Raises
        ------
        secagg.errors.SecAggError
            If too few handed over shares that fit.
        """
        totals = coordinator.aggregate(self.federation.run, self.announcement, self.publics, self.masked, self.shares)
        return dict(decode_sum(self.announcement.layout, totals))

    def heads(self) -> dict[str, bytes]:
        """Ledger heads the survivors reported: 8 bytes of count, 32 of hash."""
        return {
            silo: message.ledger_head[0].to_bytes(8, "big") + message.ledger_head[1]
            for silo, message in self.masked.items()
        }
