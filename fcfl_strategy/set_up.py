"""From enrolments to a run: the roster and, for a regular graph, everyone's part in the order of its circle."""

import logging
from collections.abc import Iterable, Mapping

from fcfl_strategy.errors import RunError
from fcfl_strategy.exchange import Answer, Mailbox, request
from fcfl_strategy.journal import Journal
from fcfl_strategy.settings import Settings
from secagg.envelopes import RevealRequest
from secagg.errors import SecAggError
from secagg.graph import GraphNonce, RegularGraph, commit_nonce
from secagg.graph_parameters import choose
from secagg.messages import PROTOCOL_VERSION, Enrolment, Roster, RosterEntry, Run

logger = logging.getLogger("fcfl.coordinator")

REVEAL = "query.reveal"


def roster_of(settings: Settings, enrolments: Iterable[Enrolment]) -> Roster:
    """Return the roster.

    Raises
    ------
    secagg.errors.ProtocolError
        If a regular graph is asked for and no degree withstands the stated rates.
    """
    enrolled = sorted(enrolments, key=lambda enrolment: enrolment.silo_id)
    choose(settings.graph, len(enrolled), settings.rates)
    return Roster(tuple(RosterEntry.of(enrolment) for enrolment in enrolled))


def freeze(mailbox: Mailbox, settings: Settings, journal: Journal, roster: Roster, nodes: Mapping[str, int]) -> Run:
    """Fix the run. For a regular graph every silo of the roster has to reveal its nonce first.

    The roster is made durable before any silo sees it, because a silo reveals its nonce for one roster only.

    Raises
    ------
    RunError
        If a silo does not reveal what it committed to: leaving it out would let the coordinator choose among the
        orders that different subsets give.
    """
    run_id, n = settings.terms.run_id, len(roster.entries)
    degree = choose(settings.graph, n, settings.rates)
    if degree is None:
        return Run(PROTOCOL_VERSION, run_id, roster, roster.threshold, settings.colluders)
    journal.put("roster", roster.to_bytes())
    body, ttl = RevealRequest(run_id, roster).to_bytes(), settings.deadlines.unmask
    messages = [request(REVEAL, nodes[silo], body, ttl=ttl, group="0") for silo in roster.ids]
    names = {node: silo for silo, node in nodes.items()}
    nonces = {}
    for answer in mailbox.exchange(messages, ttl):
        nonce = _nonce(answer, roster, run_id, names[answer.node])
        if nonce is not None:
            nonces[names[answer.node]] = nonce
    if silent := sorted(set(roster.ids) - set(nonces)):
        raise RunError(
            f"{silent[0]} and {len(silent) - 1} more of {n} silos did not reveal their part in the order of the graph; "
            "see their logs, then start a new run"
        )
    graph = RegularGraph.of(degree, settings.rates, [nonces[silo] for silo in roster.ids])
    logger.info("regular graph: %d neighbours for each of %d silos, threshold %d", degree.k, n, degree.t)
    return Run(PROTOCOL_VERSION, run_id, roster, degree.t, settings.colluders, graph)


def _nonce(answer: Answer, roster: Roster, run_id: bytes, silo: str) -> bytes | None:
    """Return the nonce that fits the silo's commitment, or None."""
    if answer.body is None:
        logger.warning("%s does not reveal its nonce (code %s)", silo, answer.code)
        return None
    try:
        revealed = GraphNonce.from_bytes(answer.body)
    except SecAggError as error:
        logger.warning("%s: nonce refused: %s", silo, error)
        return None
    if commit_nonce(run_id, silo, revealed.nonce) != roster.entry(silo).nonce_commitment:
        logger.warning("%s: its nonce is not the one it committed to", silo)
        return None
    return revealed.nonce
