"""The table of recovery in the documents is about the scenarios there are, and comes from runs of them."""

import json
import re
from pathlib import Path

from tests.experiments.deployment.scenarios import BEGIN, DOCUMENT, END, SCENARIOS, read, rows, shown, table

FOLDER = Path(__file__).parent


def committed() -> str:
    return DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def test_the_committed_table_lists_every_scenario_once_and_in_order() -> None:
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in committed().splitlines()[2:-2]]
    assert [(line[0], line[2]) for line in lines] == [(scenario.what, shown(scenario)) for scenario in SCENARIOS]


def test_every_committed_outcome_says_of_which_day_and_state_it_is() -> None:
    for outcome, when in list(rows(committed()).values())[1:]:
        assert (outcome == "not run") == (when == "–")


def test_the_committed_table_says_what_it_was_run_with() -> None:
    assert re.fullmatch(r"Run with fcfl \S+, Flower \S+\.", committed().splitlines()[-1])


def test_every_scenario_is_a_test_and_every_test_of_recovery_a_scenario() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("test_recovery*.py"))
    assert {scenario.test.partition("[")[0] for scenario in SCENARIOS} == set(
        re.findall(r"^def (test_\w+)", sources, re.M)
    )


def test_an_outcome_that_is_there_replaces_what_was_and_others_stay(tmp_path: Path) -> None:
    first, second = SCENARIOS[0].test, SCENARIOS[1].test
    told = {"outcome": "as it was", "fcfl": "1", "flwr": "2", "run": "2026-12-01, abc"}
    made = ""
    for test in (first, second):
        (tmp_path / "one.json").write_text(json.dumps({"test": test, **told}))
        made = table(read(tmp_path), rows(made))
    assert [line.split(" | ")[1:4:2] for line in made.splitlines()[2:4]] == [["as it was", "2026-12-01, abc |"]] * 2
    assert made.count("not run") == len(SCENARIOS) - 2
    assert made.endswith("Run with fcfl 1, Flower 2.")
