"""Strict loading: what is not as the format says is named by file, line and key."""

import json
from typing import Any

import pytest

from server_app.report.data import ReportError, load_run

from .conftest import WriteRun, config, epoch, history, metrics, summary


def test_a_run_directory_is_read(write_run: WriteRun) -> None:
    run = load_run(write_run())
    assert [e.epoch for e in run.history] == list(range(16))
    assert run.trained_rounds == 15
    assert run.history[7].status == "abandoned"
    assert run.config["dp.clip"] == 1.0
    assert run.summary.evaluation is not None
    test = run.summary.evaluation.test
    assert test.r2 == pytest.approx(1 - 1.2117 / 1.2650)
    assert test.skill == pytest.approx((1.2650 - 1.2117) / (1.2650 - 1.1995))
    assert run.judged == ("test", test)


def test_without_evaluation_the_last_broadcast_point_judges(write_run: WriteRun) -> None:
    run = load_run(write_run(summary_=summary(evaluation=None)))
    assert run.judged == ("validation", run.history[-1].validation)


@pytest.mark.parametrize(("zero", "optimal"), [(1e-4, None), (1e-4, 1e-4), (1e-4, 2e-4)])
def test_skill_needs_an_optimum_below_the_zero_forecast(
    write_run: WriteRun, zero: float, optimal: float | None
) -> None:
    both = metrics(1.1e-4, mse_zero=zero, mse_optimal=optimal)
    run = load_run(write_run(summary_=summary(evaluation={"validation": both, "test": both})))
    assert run.judged is not None
    assert run.judged[1].skill is None


@pytest.mark.parametrize("name", ["config.json", "history.jsonl", "summary.json"])
def test_a_missing_file_is_named(write_run: WriteRun, name: str) -> None:
    directory = write_run()
    (directory / name).unlink()
    with pytest.raises(ReportError, match=f"^{name}: missing"):
        load_run(directory)


@pytest.mark.parametrize("name", ["config.json", "history.jsonl", "summary.json"])
def test_a_file_that_is_not_text_is_named(write_run: WriteRun, name: str) -> None:
    directory = write_run()
    (directory / name).write_bytes(b"\xff\xfe{}")
    with pytest.raises(ReportError, match=f"^{name}: not UTF-8"):
        load_run(directory)


@pytest.mark.parametrize("key", sorted(epoch(0, 0)))
def test_every_key_of_an_epoch_is_needed(write_run: WriteRun, key: str) -> None:
    rows = history()
    del rows[3][key]
    with pytest.raises(ReportError, match=rf"^history\.jsonl, line 4: {key}: missing$"):
        load_run(write_run(history_=rows))


@pytest.mark.parametrize("key", sorted(summary()))
def test_every_key_of_the_summary_is_needed(write_run: WriteRun, key: str) -> None:
    value = summary()
    del value[key]
    with pytest.raises(ReportError, match=rf"^summary\.json: {key}: missing$"):
        load_run(write_run(summary_=value))


@pytest.mark.parametrize("key", sorted(metrics()))
def test_every_metric_is_needed(write_run: WriteRun, key: str) -> None:
    broken = metrics()
    del broken[key]
    with pytest.raises(ReportError, match=rf"^summary\.json: evaluation\.test\.{key}: missing$"):
        load_run(write_run(summary_=summary(evaluation={"validation": metrics(), "test": broken})))


@pytest.mark.parametrize("key", ["config", "hash"])
def test_the_configuration_is_needed(write_run: WriteRun, key: str) -> None:
    value = config()
    del value[key]
    with pytest.raises(ReportError, match=rf"^config\.json: {key}: missing$"):
        load_run(write_run(config_=value))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("epoch", True, "expected an integer, found true"),
        ("epoch", 3.0, "expected an integer, found 3.0"),
        ("epoch", 2, "2 after 2; an epoch is never reused"),
        ("round", 1, "1 after 2; rounds do not go back"),
        ("round", -1, "expected at least 0"),
        ("purpose", "tune", "expected one of scale, train, evaluate"),
        ("status", "done", "expected one of completed, abandoned, empty"),
        ("contributors", 21, "21 of 20 enrolled silos"),
        ("survivors", 21, "21 of 20 enrolled silos"),
        ("survivors", None, "expected an integer, found null"),
        ("sigma", "1", 'expected a number, found "1"'),
        ("sigma", float("nan"), "expected a finite number, found NaN"),
        ("epsilon", -0.1, "expected at least 0"),
        ("epsilon", 0.01, "what was spent stays spent"),
        ("budget_fraction", 1.01, r"expected a number in \[0, 1\]"),
        ("divergence", -0.2, "expected at least 0"),
        ("validation", [], r"expected an object, found \[\]"),
        ("seconds", float("inf"), "expected a finite number, found Infinity"),
        ("bytes_up", 1.5, "expected an integer"),
    ],
)
def test_a_bad_value_in_the_history_is_named(write_run: WriteRun, key: str, value: Any, said: str) -> None:
    rows = history()
    rows[3][key] = value
    with pytest.raises(ReportError, match=rf"^history\.jsonl, line 4: {key}: .*{said}"):
        load_run(write_run(history_=rows))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run_id": "not hex"}, "run_id: expected hexadecimal digits"),
        ({"seeded": 0}, "seeded: expected true or false, found 0"),
        ({"threshold": 21}, "threshold: 21 of 20 silos"),
        ({"delta": 2}, r"delta: expected a number in \[0, 1\]"),
        ({"started": "yesterday"}, "started: expected an ISO 8601"),
        ({"finished": "2025-03-04T09:00:00+00:00"}, "finished: before started"),
        ({"finished": "2025-03-04T10:00:00"}, "finished: only one of"),
        ({"software": {"fcfl": 1}}, r"software\.fcfl: expected a string"),
        ({"ledger": {"entries": 1, "head": ""}}, r"ledger\.head: expected hexadecimal"),
        ({"evaluation": {"validation": metrics(), "test": None}}, r"evaluation\.test: expected an object, found null"),
        (
            {"evaluation": {"validation": metrics(directional_accuracy=56.1), "test": metrics()}},
            r"evaluation\.validation\.directional_accuracy: expected a number in \[0, 1\]",
        ),
    ],
)
def test_a_bad_value_in_the_summary_is_named(write_run: WriteRun, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ReportError, match=rf"^summary\.json: {said}"):
        load_run(write_run(summary_=summary(**change)))


def test_a_torn_line_is_named(write_run: WriteRun) -> None:
    text = "".join(json.dumps(row) + "\n" for row in history())[:-200]
    with pytest.raises(ReportError, match=r"^history\.jsonl, line 16, column \d+: not valid JSON"):
        load_run(write_run(history_=text))


def test_a_blank_line_is_named(write_run: WriteRun) -> None:
    text = json.dumps(epoch(0, 0)) + "\n\n" + json.dumps(epoch(1, 1)) + "\n"
    with pytest.raises(ReportError, match=r"^history\.jsonl, line 2: blank line$"):
        load_run(write_run(history_=text))


def test_a_syntax_error_in_a_file_of_many_lines_names_the_line(write_run: WriteRun) -> None:
    with pytest.raises(ReportError, match=r"^summary\.json, line 3, column 1: not valid JSON"):
        load_run(write_run(summary_='{\n"run_id": "00",\n}'))


def test_a_key_given_twice_is_named(write_run: WriteRun) -> None:
    with pytest.raises(ReportError, match=r"^config\.json, line 1: hash: given twice"):
        load_run(write_run(config_='{"config": {}, "hash": "00", "hash": "11"}'))


def test_other_keys_are_ignored(write_run: WriteRun) -> None:
    assert load_run(write_run(summary_=summary(later="anything"))).summary.rounds == 15


@pytest.mark.parametrize("value", [None, float("inf")])
def test_no_bound_on_epsilon_can_be_said(write_run: WriteRun, value: float | None) -> None:
    assert load_run(write_run(summary_=summary(epsilon=value))).summary.epsilon == float("inf")


def test_rounding_may_pass_a_bound_but_does_not_show(write_run: WriteRun) -> None:
    assert load_run(write_run(summary_=summary(budget_fraction=1 + 1e-12))).summary.budget_fraction == 1.0


def test_the_model_is_called_by_its_method(write_run: WriteRun) -> None:
    value = config()
    assert load_run(write_run(config_=value)).method == "FCFL"
    for method, label in (("fedadam", "FedAdam"), ("of another version", "FCFL")):
        value["config"]["method"] = method
        assert load_run(write_run(config_=value, name=label + method)).method == label
