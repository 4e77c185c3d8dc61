"""The table of recovery in the documents is about the scenarios there are, and comes from runs of them."""

import re
from pathlib import Path

from tests.experiments.deployment.scenarios import BEGIN, DOCUMENT, END, SCENARIOS, read, table

FOLDER = Path(__file__).parent


def committed() -> str:
    return DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def test_the_committed_table_lists_every_scenario_once_and_in_order() -> None:
    rows = [line.strip("| ").split(" | ") for line in committed().splitlines() if line.startswith("| ")][1:]
    assert [(row[0], row[2]) for row in rows] == [
        tuple(line.strip("| ").split(" | ")[::2]) for line in table({}).splitlines() if line.startswith("| ")
    ][1:]


def test_the_committed_table_says_what_it_was_run_with() -> None:
    assert re.fullmatch(r"Run with fcfl \S+, Flower \S+\.", committed().splitlines()[-1])


def test_every_scenario_is_a_test_and_every_test_of_recovery_a_scenario() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("test_recovery*.py"))
    assert {scenario.test.partition("[")[0] for scenario in SCENARIOS} == set(
        re.findall(r"^def (test_\w+)", sources, re.M)
    )


def test_an_outcome_that_is_there_replaces_not_run(tmp_path: Path) -> None:
    first = SCENARIOS[0].test
    (tmp_path / "one.json").write_text(f'{{"test": "{first}", "outcome": "as it was", "fcfl": "1", "flwr": "2"}}')
    made = table(read(tmp_path))
    assert made.splitlines()[2].split(" | ")[1] == "as it was"
    assert made.count("not run") == len(SCENARIOS) - 1
    assert made.endswith("Run with fcfl 1, Flower 2.")
