"""The list of what is broken on purpose, what came of it, and the table of both in docs/operations.md."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.experiments.deployment.parts import ROOT

DOCUMENT = ROOT / "docs" / "operations.md"
OUTCOMES = ROOT / "runs" / "recovery"
BEGIN, END = "<!-- recovery: made by make recovery -->", "<!-- /recovery -->"
ENABLED = "FCFL_RECOVERY"
FAILED = "**fails**, or could not be run"


@dataclass(frozen=True)
class Scenario:
    """One way to break a deployment.

    Attributes
    ----------
    test : str
        Name of the test.
    what : str
        What happens to the deployment.
    """

    test: str
    what: str


SCENARIOS = (
    Scenario("test_a_worker_killed_in_training", "the process that trains at a silo is killed"),
    Scenario("test_the_superlink_killed_and_started_again", "SuperLink killed, started with its database"),
    Scenario("test_the_proxy_killed_and_started_again", "proxy killed, started again"),
    Scenario("test_the_server_app_killed", "ServerApp killed while shares come in"),
    Scenario("test_the_executor_killed", "the ServerApp's executor and the ServerApp killed"),
    Scenario("test_a_node_killed_at_work_on_a_message[enrol]", "a silo's node killed as it enrols, started again"),
    Scenario("test_a_node_killed_at_work_on_a_message[join]", "the same while it makes its keys for an epoch"),
    Scenario("test_a_node_killed_at_work_on_a_message[train]", "the same in training"),
    Scenario("test_a_node_killed_at_work_on_a_message[unmask]", "the same while it gives its shares"),
    Scenario("test_the_conductor_killed_and_the_command_given_again", "`fcfl run conduct` killed, given again"),
    Scenario("test_everything_killed_and_started_again", "every process killed at once, started again"),
    Scenario("test_power_lost_between_ledger_and_reply", "a silo loses power between ledger entry and reply"),
    Scenario(
        "test_power_lost_between_ledger_and_reply_and_the_server_app_killed", "the same, and the ServerApp is killed"
    ),
    Scenario("test_the_line_cut_for_ten_seconds_in_every_stage", "line cut for 10 s in each of the four stages"),
    Scenario("test_the_line_cut_for_two_minutes[enrol]", "line cut for 2 minutes at enrolment"),
    Scenario("test_the_line_cut_for_two_minutes[join]", "line cut for 2 minutes while keys are exchanged"),
    Scenario("test_the_line_cut_for_two_minutes[train]", "line cut for 2 minutes in training"),
    Scenario("test_the_line_cut_for_two_minutes[unmask]", "line cut for 2 minutes while shares come in"),
    Scenario("test_a_server_certificate_that_ends", "the server's certificate ends during a run"),
    Scenario("test_a_silo_that_comes_back_epochs_later[kept]", "a silo is away for epochs and comes back"),
    Scenario("test_a_silo_that_comes_back_epochs_later[erased]", "the same, without what it kept of the run"),
    Scenario("test_a_silo_away_while_the_coordinator_resumes", "a silo is away while the ServerApp is killed, resumed"),
    Scenario("test_a_copy_with_the_same_node_key", "a second copy of a silo, with the same node key"),
    Scenario("test_a_copy_with_another_node_key", "a second copy of a silo, with another registered node key"),
    Scenario("test_a_clock_that_is_behind", "a silo's clock is behind"),
    Scenario("test_a_clock_that_is_ahead", "a silo's clock is ahead"),
    Scenario("test_a_full_disk_at_a_silo", "a silo's disk is full for an epoch"),
    Scenario("test_a_full_disk_at_the_coordinator", "the coordinator's disk is full"),
)

full = pytest.mark.skipif(not os.environ.get(ENABLED), reason=f"set {ENABLED}=1, or 'make recovery'")
"""Marks the tests that only `make recovery` runs."""


def note(test: str, outcome: str) -> None:
    """Write the outcome of one scenario, when it was, and of which state of the code."""
    if os.environ.get(ENABLED):
        OUTCOMES.mkdir(parents=True, exist_ok=True)
        told = {
            "test": test,
            "outcome": outcome,
            "fcfl": version("fcfl"),
            "flwr": version("flwr"),
            "run": f"{datetime.now(UTC):%Y-%m-%d}, {state()}",
        }
        (OUTCOMES / f"{test}.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def state() -> str:
    """Name the state of the code by its commit, with a plus if it was changed since."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty=+", "--abbrev=8"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "no commit"


def shown(scenario: Scenario) -> str:
    """Name of a scenario's test as the table has it."""
    name, bracket, case = scenario.test.partition("[")
    return f"`{name}`{f', {case[:-1]}' if bracket else ''}"


def table(outcomes: Mapping[str, Mapping[str, str]], before: Mapping[str, tuple[str, str]] | None = None) -> str:
    """Return the table of all scenarios: of those that ran, the outcome; of others what an earlier table says.

    Parameters
    ----------
    outcomes : mapping
        By the name of the test.
    before : mapping, optional
        Outcome and time of a run in an earlier table, by the name of the test as it is shown.
    """
    lines = ["| what happens | outcome | test | run |", "|---|---|---|---|"]
    for scenario in SCENARIOS:
        found, old = outcomes.get(scenario.test), (before or {}).get(shown(scenario), ("not run", "–"))
        outcome, when = (found["outcome"], found["run"]) if found else old
        lines.append(f"| {scenario.what} | {outcome} | {shown(scenario)} | {when} |")
    versions = sorted({f"fcfl {o['fcfl']}, Flower {o['flwr']}" for o in outcomes.values()})
    return "\n".join([*lines, "", f"Run with {'; '.join(versions) or 'no version yet'}."])


def rows(made: str) -> dict[str, tuple[str, str]]:
    """Read outcome and time of a run from a table, by the name of the test as it is shown."""
    cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in made.splitlines() if line.startswith("| "))
    return {cell[2]: (cell[1], cell[3]) for cell in cells if len(cell) == 4}


def read(folder: Path) -> dict[str, dict[str, str]]:
    """Return the outcomes that `make recovery` left in a folder."""
    found = (json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json")))
    return {outcome["test"]: outcome for outcome in found}


def main() -> None:
    """Put the table of the scenarios that ran between the marks of the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    old, _, tail = rest.partition(END)
    made = table(read(OUTCOMES), rows(old))
    DOCUMENT.write_text(f"{head}{BEGIN}\n{made}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
