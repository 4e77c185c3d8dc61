"""Who takes part: ask every node for its enrolment and freeze the roster."""

import logging
import time
from collections.abc import Iterable, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from fcfl_strategy.errors import RunError
from fcfl_strategy.exchange import Answer, Mailbox, request
from fcfl_strategy.journal import Journal
from fcfl_strategy.secure_epoch import Federation
from fcfl_strategy.set_up import freeze, roster_of
from fcfl_strategy.settings import Settings
from secagg.envelopes import CloseRequest
from secagg.errors import SecAggError
from secagg.messages import Enrolment, Roster, RosterEntry, Run
from secagg.signatures import check_enrolment

logger = logging.getLogger("fcfl.coordinator")

ENROL, CLOSE = "query.enrol", "query.close"
DISSOLVED = "dissolved"


def enrol(grid: Grid, mailbox: Mailbox, settings: Settings, journal: Journal) -> tuple[Federation, Mapping[str, int]]:
    """Enrol the silos, or, in a resumed run, find out from which node each of them answers now.

    Returns
    -------
    Federation
        The run's roster and nodes.
    mapping of str to int
        ``N_i`` of every silo of the roster.

    Raises
    ------
    RunError
        If fewer silos than expected enrol in time, or one of them does not reveal its part in the order of a regular
        graph. The run is then dissolved: the silos that did enrol close it, so that their budget is free for the next.
    """
    if journal.get(DISSOLVED) is not None:
        raise RunError("this run ended at enrolment; start a new one")
    began = time.monotonic()
    deadline = began + settings.deadlines.enrol
    # Those that are there need time to answer, whoever stays away.
    gathered = began + settings.deadlines.enrol / 2
    while len(nodes := sorted(grid.get_node_ids())) < settings.silos and time.monotonic() < gathered:
        time.sleep(settings.deadlines.poll)
    body = settings.terms.to_bytes()
    ttl = settings.deadlines.enrol
    messages: list[Message] = [request(ENROL, node, body, ttl=ttl, group="0") for node in nodes]
    left = max(deadline - time.monotonic(), settings.deadlines.poll)
    stored = journal.get("run")
    run = None if stored is None else Run.from_bytes(stored)
    answers: list[Answer] = []
    least = settings.silos if run is None else run.minimum
    mailbox.insist(messages, answers.append, left, lambda _: sum(a.body is not None for a in answers) < least)

    shown = journal.get("roster")
    roster = run.roster if run is not None else None if shown is None else Roster.from_bytes(shown)
    found: dict[str, tuple[int, Enrolment]] = {}
    for answer in answers:
        enrolment = _read(answer, settings)
        if enrolment is None:
            continue
        twin = next((silo for silo, (_, other) in found.items() if _same_key(other, enrolment)), None)
        if roster is not None and not _listed(roster, enrolment):
            logger.warning("%s on node %d is not a silo of this run; it is left out", enrolment.silo_id, answer.node)
        elif enrolment.silo_id in found:
            logger.warning("two nodes enrol as %s; the second is left out", enrolment.silo_id)
        elif twin is not None:
            logger.warning("%s enrols with a key of %s; the second is left out", enrolment.silo_id, twin)
        else:
            found[enrolment.silo_id] = (answer.node, enrolment)

    if run is None:
        agreed_to = {answer.node for answer in answers if answer.body is not None}
        wanted = settings.silos if roster is None else len(roster.entries)
        try:
            if len(found) < wanted:
                raise RunError(
                    f"too few silos: {len(found)} of {wanted} enrolled within {settings.deadlines.enrol:g} s; "
                    "see the silos' own logs for the reason of a refusal, or lower 'silos', then start a new run"
                )
            if roster is None:
                roster = roster_of(settings, [enrolment for _, enrolment in found.values()])
                for silo, (_, enrolment) in found.items():
                    journal.put(f"enrolment.{roster.index(silo):05d}", enrolment.to_bytes())
            run = freeze(mailbox, settings, journal, roster, {silo: node for silo, (node, _) in found.items()})
        except (RunError, SecAggError):
            journal.put(DISSOLVED, b"")
            refused = {answer.node for answer in answers if answer.code is not None}
            mailbox.send(_closing(settings, set(nodes) - agreed_to - refused), lambda answer: None)
            mailbox.exchange(_closing(settings, agreed_to), settings.deadlines.unmask)
            raise
        left_out = agreed_to - {node for node, _ in found.values()}
        mailbox.send(_closing(settings, left_out), lambda answer: None)
        journal.put("run", run.to_bytes())
    enrolled = (journal.get(name) for name in journal.names("enrolment."))
    agreed = [Enrolment.from_bytes(data) for data in enrolled if data is not None]
    federation = Federation(run, {silo: node for silo, (node, _) in found.items()}, journal)
    return federation, {enrolment.silo_id: enrolment.records for enrolment in agreed}


def find_missing(
    grid: Grid, mailbox: Mailbox, settings: Settings, federation: Federation, timeout: float = 0.0
) -> None:
    """Ask nodes that are not known for the silos that were away when the run was taken up.

    Parameters
    ----------
    timeout : float
        Seconds to wait for them; later answers are taken whenever they arrive.
    """
    if len(federation.nodes) == len(federation.run.roster.entries):
        return
    strangers = sorted(set(grid.get_node_ids()) - federation.silos.keys() - federation.strangers)

    def receive(answer: Answer) -> None:
        if answer.unreachable:
            return
        enrolment = _read(answer, settings)
        if enrolment is None or not _listed(federation.run.roster, enrolment):
            federation.strangers.add(answer.node)
            if enrolment is not None:
                mailbox.send(_closing(settings, [answer.node]), lambda _: None)
        elif enrolment.silo_id not in federation.nodes:
            logger.info("%s is back, on node %d", enrolment.silo_id, answer.node)
            federation.add(enrolment.silo_id, answer.node)

    body, ttl = settings.terms.to_bytes(), settings.deadlines.enrol
    mailbox.wait(mailbox.send([request(ENROL, node, body, ttl=ttl, group="0") for node in strangers], receive), timeout)


def _closing(settings: Settings, nodes: Iterable[int]) -> list[Message]:
    """Requests to close the run at nodes that agreed to it, or may still do, and have no part in it."""
    body, ttl = CloseRequest(settings.terms.run_id).to_bytes(), settings.deadlines.unmask
    return [request(CLOSE, node, body, ttl=ttl, group="close") for node in sorted(nodes)]


def _listed(roster: Roster, enrolment: Enrolment) -> bool:
    """Whether a silo answers with the keys and the signature that the roster holds under its name."""
    silo = enrolment.silo_id
    return silo in roster and roster.entry(silo) == RosterEntry.of(enrolment)


def _same_key(one: Enrolment, other: Enrolment) -> bool:
    return one.identity_key == other.identity_key or one.encryption_key == other.encryption_key


def _read(answer: Answer, settings: Settings) -> Enrolment | None:
    """Return a node's enrolment if it is signed for this run and, where silos are pinned, by a pinned identity."""
    if answer.body is None:
        logger.warning("node %d did not enrol (code %s)", answer.node, answer.code)
        return None
    try:
        enrolment = check_enrolment(settings.terms.run_id, Enrolment.from_bytes(answer.body))
        if settings.pins is not None:
            settings.pins.check([RosterEntry.of(enrolment)])
    except SecAggError as error:
        logger.warning("node %d: enrolment refused: %s", answer.node, error)
        return None
    if enrolment.records < 1:
        logger.warning("%s enrolled without records; it is left out", enrolment.silo_id)
        return None
    return enrolment
