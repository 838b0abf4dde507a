"""Names and values of what MLflow shows of a run."""

from jobs.results.cell_summary import CellSummary
from jobs.tracking.values import cell_metrics, flatten


def test_flatten_keeps_every_leaf():
    tree = {"a": {"b": 1, "c": []}, "d": [{"e": None}, "text"]}
    assert flatten(tree) == {"a.b": "1", "a.c": "[]", "d.0.e": "None", "d.1": "text"}


def test_group_values_become_names_that_mlflow_takes_and_stay_apart():
    entry = {"accuracy": 0.5, "ci95": [0.4, 0.6], "n": 3}
    values = {"C++/C#": entry, "C--/C!": entry, "": entry}
    data = EMPTY | {"accuracy_by": {"lang uage": values}}
    summary = CellSummary.from_json(data, run_id="a", model="tiny")
    names = [name for name in cell_metrics(summary) if name.startswith("accuracy/")]
    assert sorted(names) == ["accuracy/lang uage/C--_C_", "accuracy/lang uage/C___C_",
                             "accuracy/lang uage/_"]  # fmt: skip


EMPTY = {
    **dict.fromkeys(("cell", "benchmark", "method"), "x"),
    **dict.fromkeys(
        ("accuracy", "accuracy_ci95", "accuracy_answered", "retention_requested", "tokens_total",
         "retention_actual", "equivalent_retention", "tokens_kept", "prefill_tflops")
    ),
    **dict.fromkeys(
        ("num_failed", "num_failed_clips", "num_unparsed", "num_questions", "num_clips"), 0
    ),
    "cache": {"hits": 0, "misses": 0},
    "throughput": {},
    "latency_ms": {},
}  # fmt: skip
