"""The silo's side of a run: enrol, reveal, join, contribute, unmask, close. Bytes and arrays in, bytes and arrays out.

Every stage goes through the outbox: the identical request gets the identical reply and spends nothing, a
different request under the same (run, epoch, stage) is declined. In `contribute` the order is: compute, store
reply and secrets durably, note in the secrets what they masked, charge the ledger durably, reply. A crash at any
point leaves either no trace, or a stored reply whose note and charge are made up for before it is sent.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import cbor2
import numpy as np
from numpy.typing import NDArray

from client_app.contribution import Question, Sample, contribution
from client_app.drift_control import reset, settle
from client_app.errors import Declined, SiloError
from client_app.home import Reply, RunFolder, SiloHome
from client_app.peer_heads import begin, remember
from client_app.pinned_roster import check_peers, check_shown, pinned
from client_app.policy import check_graph, check_plan, check_terms
from client_app.privacy_book import PrivacyBook
from privacy.errors import PrivacyError
from privacy.release import FEATURE_BOUND, ReleasePlan
from privacy.scaling import FeatureScale
from privacy.terms import RunTerms
from secagg import signatures
from secagg import silo as protocol
from secagg.envelopes import CloseRequest, JoinRequest, MaskReply, MaskRequest, RevealRequest, UnmaskCall
from secagg.graph import GraphNonce, commit_nonce, new_nonce
from secagg.layout import layout_for
from secagg.messages import (
    Announcement,
    Bundle,
    EpochOutcome,
    MaskedHeader,
    Roster,
    Run,
)
from secagg.silo import EpochSecrets

logger = logging.getLogger("fcfl.silo")
# Bundles of one run that wait for their epoch's announcement. An epoch that comes to nothing leaves one; many more, or
# far ahead, come from a coordinator that fills the disk.
MAX_BUNDLES = 64
NOTHING: Mapping[str, NDArray[np.unsignedinteger]] = {}


@dataclass(frozen=True)
class Silo:
    """One silo: its folder, its samples and the software it reports."""

    home: SiloHome
    sample: Sample
    software: str

    @property
    def name(self) -> str:
        """Name in the roster."""
        return self.home.settings.name

    def enrol(self, body: bytes) -> Reply:
        """Agree to a run's terms, open it in the ledger, and hand over keys and ``N_i``."""
        terms = RunTerms.from_bytes(body)
        folder = self.home.run(terms.run_id)
        if stored := folder.answered("enrol", 0, body):
            return stored
        with self.home.ledger() as ledger:
            book = PrivacyBook(ledger)
            if book.closed(terms):
                raise Declined("the run was closed")
            check_terms(self.home.settings.policy, terms, self.sample.features, book.granted(besides=terms))
            pinned(self.home)
            keys, nonce = protocol.new_run_keys(), new_nonce()
            enrolment = signatures.enrol(
                terms.run_id,
                self.name,
                keys.encryption_key,
                commit_nonce(terms.run_id, self.name, nonce),
                self.sample.records,
                self.software,
                self.home.identity,
            )
            book.open_run(terms, self.software)
            folder.put("terms", body)
            folder.put("samples", self.sample.fingerprint)
            folder.put("keys", keys.to_bytes())
            folder.put("graph-nonce", nonce)
            logger.info("run %s: enrolled with %d records", terms.run_id.hex(), self.sample.records)
        return folder.answer("enrol", 0, body, Reply(enrolment.to_bytes(), NOTHING))

    def reveal(self, body: bytes) -> Reply:
        """Reveal this silo's part in the order of a regular graph, for one roster per run."""
        asked = RevealRequest.from_bytes(body)
        folder = self.home.run(asked.run_id)
        if stored := folder.answered("reveal", 0, body):
            return stored
        self._check_roster(asked.run_id, asked.roster, folder)
        nonce = folder.need("graph-nonce")
        if asked.roster.entry(self.name).nonce_commitment != commit_nonce(asked.run_id, self.name, nonce):
            raise Declined("the roster lists another commitment under this silo's name")
        revealed = GraphNonce(asked.run_id, self.name, nonce).to_bytes()
        return folder.answer("reveal", 0, body, Reply(revealed, NOTHING, body))

    def join(self, body: bytes) -> Reply:
        """Give the bundle of an epoch; at most one bundle per (run, epoch) ever exists."""
        asked = JoinRequest.from_bytes(body)
        folder = self.home.run(asked.run.run_id)
        _refuse_if_over(folder, asked.epoch)
        stored = folder.get("run")
        if stored is None:
            self._check_run(asked.run, folder)
            begin(self.home, folder)
            folder.put("run", asked.run.to_bytes())
        elif stored != asked.run.to_bytes():
            raise Declined("the roster of a run never changes")
        else:
            check_peers(self.home, asked.run.roster)
        return Reply(self._bundle(asked.run, folder, asked.epoch).to_bytes(), NOTHING)

    def _check_roster(self, run_id: bytes, roster: Roster, folder: RunFolder) -> None:
        keys = protocol.RunKeys.from_bytes(folder.need("keys"))
        check_shown(self.home, keys.encryption_key, run_id, roster)

    def _check_run(self, run: Run, folder: RunFolder) -> None:
        self._check_roster(run.run_id, run.roster, folder)
        if run.graph is not None:
            check_graph(self.home.settings.policy, run.graph)
            shown = folder.reply("reveal", 0)
            if shown is None or RevealRequest.from_bytes(shown.request).roster != run.roster:
                raise Declined("the graph's order is of another roster than the one this silo revealed its nonce for")
        elif run.threshold < run.roster.threshold:
            raise Declined(f"threshold {run.threshold} is below floor(2N/3) + 1 = {run.roster.threshold}")

    def _bundle(self, run: Run, folder: RunFolder, epoch: int) -> Bundle:
        stored = folder.get(f"{epoch}.bundle")
        if stored is None:
            folder.make_way(epoch, MAX_BUNDLES)
            keys = protocol.RunKeys.from_bytes(folder.need("keys"))
            secrets, bundle = protocol.create_bundle(run, keys, self.name, epoch, signer=self.home.identity)
            stored = cbor2.dumps([secrets.to_bytes(), bundle.to_bytes()])
            folder.put(f"{epoch}.bundle", stored)
        return Bundle.from_bytes(cbor2.loads(stored)[1])

    @staticmethod
    def _secrets(folder: RunFolder, epoch: int) -> protocol.EpochSecrets:
        return protocol.EpochSecrets.from_bytes(cbor2.loads(folder.need(f"{epoch}.bundle"))[0])

    def _record(self, folder: RunFolder, epoch: int, done: Callable[[EpochSecrets], EpochSecrets]) -> None:
        """Note in the stored secrets what they were used for, before its reply leaves.

        With it a second, different use is refused even if the outbox is lost. Secrets that are gone serve nothing.
        """
        stored = folder.get(f"{epoch}.bundle")
        if stored is None:
            return
        before, bundle = cbor2.loads(stored)
        after = done(EpochSecrets.from_bytes(before)).to_bytes()
        if after != before:
            folder.put(f"{epoch}.bundle", cbor2.dumps([after, bundle]))

    def contribute(self, body: bytes, arrays: Mapping[str, NDArray[np.generic]]) -> Reply:
        """Answer an announcement with a masked vector and the bundle of the next epoch."""
        asked = MaskRequest.from_bytes(body)
        announcement = asked.announcement
        epoch, folder = announcement.epoch, self.home.run(announcement.run_id)
        run = Run.from_bytes(folder.need("run"))
        terms = RunTerms.from_bytes(folder.need("terms"))
        self._check_records(folder)
        plan = ReleasePlan.from_bytes(announcement.context)
        with self.home.ledger() as ledger:
            book = PrivacyBook(ledger)
            if stored := folder.answered("contribute", epoch, body):
                self._record(folder, epoch, lambda secrets: protocol.record_masked(secrets, announcement))
                _make_up(book, stored)
                return stored
            check_peers(self.home, run.roster)
            _refuse_if_over(folder, epoch)
            if book.entered(terms, epoch):
                raise Declined(f"epoch {epoch} is in the ledger and its reply is gone; a second vector would be free")
            check_plan(
                self.home.settings.policy,
                terms,
                plan,
                enrolled=len(run.roster.entries),
                records=self.sample.records,
            )
            _check_layout(announcement, plan, terms, run)
            self._check_head(book, announcement)
            point = _received(arrays, "point", plan.parameters, plan.point_hash)
            control_mean = _received(arrays, "control", plan.parameters, plan.control_hash)
            scale = _scale(arrays, plan, terms)
            keys, secrets = protocol.RunKeys.from_bytes(folder.need("keys")), self._secrets(folder, epoch)
            # What could not be masked is refused before it settles an epoch or costs anything.
            view = protocol.check_signed_view(run, keys, secrets, self.name, announcement, asked.publics)
            folder.check_control(plan.control_generation, released=book.spent(terms))
            self._settle(folder, book, plan, announcement.outcomes, epoch)

            question = Question(
                announcement, plan, terms, plan.charges(terms, self.sample.records), point, control_mean, scale
            )
            may_train, may_measure = book.admits(question.training), book.admits(question.others)
            training = question.training if may_train else ()
            measured = question.others if may_measure else ()
            try:
                vector = contribution(
                    self.sample,
                    self.name,
                    question,
                    folder.control(plan.parameters),
                    may_train=may_train,
                    may_measure=may_measure,
                )
                bundle = self._bundle(run, folder, epoch + 1)
                released = training + measured if vector.released else measured
                lines = book.lines(terms, epoch, question.charges, released)
                masked = protocol.mask_in_view(
                    run,
                    secrets,
                    announcement,
                    view,
                    vector.encoded,
                    ledger_head=book.head_after(lines),
                    signer=self.home.identity,
                )
            except Exception:
                # That it failed may depend on what it computed, and the refusal shows it. What the coordinator can make
                # fail afterwards is charged as well: else it could watch as often as it likes how long computing takes.
                book.enter(book.lines(terms, epoch, question.charges, training + measured))
                raise
            header = MaskedHeader.from_bytes(masked.header_bytes())
            reply = Reply(MaskReply(header, bundle).to_bytes(), masked.arrays, body, vector.pending, lines)
            folder.answer("contribute", epoch, body, reply)
            self._record(folder, epoch, lambda secrets: protocol.record_masked(secrets, announcement))
            book.enter(lines)
            used = 100 * book.budget(terms.run).fraction
            logger.info("epoch %d: %s; %.2f %% of the training budget used", epoch, vector.diagnostics, used)
        return reply

    def _check_records(self, folder: RunFolder) -> None:
        """Refuse if the samples are not the ones the silo enrolled with: they are frozen for a run (errata E25)."""
        if folder.need("samples") != self.sample.fingerprint:
            raise SiloError("the samples changed during the run; restore those the silo enrolled with")

    def _check_head(self, book: PrivacyBook, announcement: Announcement) -> None:
        """Decline if the coordinator remembers a ledger head that this ledger does not hold: a copy was restored."""
        shown = announcement.ledger_heads.get(self.name)
        if shown is not None and not book.holds((int.from_bytes(shown[:8], "big"), shown[8:])):
            raise Declined("the ledger is behind a head this silo has shown; restore the ledger that goes with it")

    def _settle(
        self,
        folder: RunFolder,
        book: PrivacyBook,
        plan: ReleasePlan,
        outcomes: tuple[EpochOutcome, ...],
        before: int,
    ) -> None:
        """Apply the announced outcomes to the control, then close and erase the epochs before this one.

        A control of an earlier generation is reset, and what was still to be settled for it is dropped.

        A reply that was stored but never entered in the ledger has not left; whatever the coordinator says of it,
        it must not shape later releases.
        """
        control = folder.control(plan.parameters)
        if plan.control_generation < control.generation:
            raise Declined("the controls were reset since this plan was made")
        for outcome in outcomes:
            if control.settled < outcome.epoch < before:
                counted = outcome.status == "completed" and self.name in outcome.survivors
                sent = folder.reply("contribute", outcome.epoch)
                counted = counted and sent is not None and not book.missing(sent.lines)
                control = settle(control, outcome.epoch, sent.pending if sent and counted else None)
        if plan.control_generation > control.generation:
            control = reset(control, plan.control_generation)
        folder.put_control(replace(control, settled=before - 1))
        folder.erase_before(before)

    def unmask(self, body: bytes) -> Reply:
        """Hand over the shares that unmask the sum of the survivors; one answer per epoch."""
        call = UnmaskCall.from_bytes(body)
        asked, headers = call.request, call.headers()
        folder = self.home.run(asked.run_id)
        if stored := folder.answered("unmask", asked.epoch, body):
            self._record(folder, asked.epoch, lambda secrets: protocol.record_answered(secrets, asked))
            return stored
        sent = folder.reply("contribute", asked.epoch)
        if sent is None:
            raise Declined(f"unmask of epoch {asked.epoch}: this silo sent no vector")
        peers = MaskRequest.from_bytes(sent.request)
        run = Run.from_bytes(folder.need("run"))
        shares = protocol.answer_unmask(
            run,
            protocol.RunKeys.from_bytes(folder.need("keys")),
            self._secrets(folder, asked.epoch),
            self.name,
            peers.announcement,
            peers.publics,
            peers.ciphertexts,
            asked,
            headers,
            signer=self.home.identity,
        )
        remember(self.home, folder, run.roster, headers)
        reply = folder.answer("unmask", asked.epoch, body, Reply(shares.to_bytes(), NOTHING))
        self._record(folder, asked.epoch, lambda secrets: protocol.record_answered(secrets, asked))
        return reply

    def close(self, body: bytes) -> Reply:
        """End a run: close it in the ledger, then erase its secrets and the control, which no later run uses."""
        asked = CloseRequest.from_bytes(body)
        folder = self.home.run(asked.run_id)
        terms = RunTerms.from_bytes(folder.need("terms"))
        with self.home.ledger() as ledger:
            PrivacyBook(ledger).close_run(terms, "closed by the coordinator")
        folder.erase_secrets()
        logger.info("run %s: closed, secrets erased", asked.run_id.hex())
        return Reply(b"", NOTHING)


def _refuse_if_over(folder: RunFolder, epoch: int) -> None:
    """Decline an epoch whose secrets and replies are erased: answering again would be a second, uncharged release."""
    if epoch <= (over := max(folder.settled(), folder.dropped())):
        raise Declined(f"epoch {epoch}: over for this silo, which is past epoch {over}; no number is used twice")


def _make_up(book: PrivacyBook, stored: Reply) -> None:
    """Enter what a crash left out of the ledger; the reply may leave only with the ledger head it states."""
    if not (missing := book.missing(stored.lines)):
        return
    header = MaskReply.from_bytes(stored.body).header
    if header.ledger_head != book.head_after(missing):
        raise Declined(f"epoch {header.epoch}: the ledger went on since its reply was stored; the reply stays unsent")
    book.enter(missing)


def _check_layout(announcement: Announcement, plan: ReleasePlan, terms: RunTerms, run: Run) -> None:
    """Decline unless the announced ring is the one the plan's public bounds give."""
    bounds = ((b.name, b.length, b.bits, b.bound) for b in plan.bounds(terms))
    if announcement.layout != layout_for(bounds, len(run.roster.entries)):
        raise Declined("the announced ring layout is not the one the plan's bounds give")


def _scale(arrays: Mapping[str, NDArray[np.generic]], plan: ReleasePlan, terms: RunTerms) -> FeatureScale | None:
    """Return the announced scale of the features, a public number like the point."""
    if not plan.scale_hash:
        return None
    values = _received(arrays, "scale", 2 * terms.features, plan.scale_hash).astype(float).tolist()
    try:
        return FeatureScale(tuple(values[: terms.features]), tuple(values[terms.features :]), FEATURE_BOUND)
    except PrivacyError as error:
        raise Declined(f"scale: {error}") from None


def _received(arrays: Mapping[str, NDArray[np.generic]], name: str, length: int, digest: bytes) -> NDArray[np.float32]:
    """Return an array from the coordinator, refused unless it is finite and the announced one."""
    array = arrays.get(name)
    if array is None or array.dtype != np.dtype("<f4") or array.shape != (length,):
        raise Declined(f"{name}: expected {length} float32 values from the coordinator")
    if hashlib.sha256(array.tobytes()).digest() != digest:
        raise Declined(f"{name}: not the vector whose hash was announced")
    values = np.array(array, dtype=np.float32)
    if not np.isfinite(values).all():
        raise Declined(f"{name}: a value from the coordinator is not finite")
    return values
