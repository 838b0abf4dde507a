"""Every rule of every version against recorded scores; PROVENANCE.md says how each was recorded."""

import json
from collections import Counter
from pathlib import Path

import pytest
import releases
from releases import PROTOCOLS, load
from releases import RECORDED as TASKS

from tango_core.benchmarks.protocols.protocol import is_failure
from tango_core.types import Question

FIXTURES = Path(__file__).parents[3] / "fixtures"
RECORDED = json.loads((FIXTURES / "recorded_scores" / "scores.json").read_text(encoding="utf-8"))
QUESTIONS = {
    name: Question("q", asked["text"], tuple(asked["choices"]), asked["answer"])
    for name, asked in RECORDED["questions"].items()
}


def table(rule):
    """(question, reply, recorded score) of one rule."""
    column = RECORDED["rules"].index(rule)
    return [(QUESTIONS[name], reply, row[column]) for name, reply, row in RECORDED["replies"]]


@pytest.mark.parametrize("rule", RECORDED["rules"])
def test_a_rule_counts_what_its_harness_counts(rule):
    benchmark, name = rule.split(" ")
    score = PROTOCOLS[benchmark][name].harness_score
    rows = table(rule)
    assert [score(reply, question) for question, reply, _ in rows] == [row[2] for row in rows]


def test_every_version_of_every_public_benchmark_is_recorded():
    rules = {
        f"{benchmark} {name}"
        for benchmark, protocols in PROTOCOLS.items()
        for name in protocols
        if "@" in name and name.partition("@")[0] in ("vlmevalkit", "lmms_eval")
    }
    assert rules == set(RECORDED["rules"])
    assert len(RECORDED["replies"]) >= 4 * 40
    for rule in rules:
        assert min(Counter(score for _, _, score in table(rule)).get(x, 0) for x in (0, 1)) >= 10


@pytest.mark.parametrize("benchmark", sorted(PROTOCOLS))
def test_a_bare_name_stands_for_the_newest_version(benchmark):
    for bare, dated in (("vlmevalkit", "vlmevalkit@e8e78f05"), ("lmms_eval", "lmms_eval@0.7.3")):
        ours, same = PROTOCOLS[benchmark][bare], PROTOCOLS[benchmark][dated]
        assert (ours.name, same.name) == (bare, dated), "results hold the name that the recipe gave"
        assert ours.harness_score is same.harness_score
        assert ours.render is same.render


def scores(benchmark, name):
    """What one protocol counts for all replies."""
    score = PROTOCOLS[benchmark][name].harness_score
    return [score(reply, QUESTIONS[question]) for question, reply, _ in RECORDED["replies"]]


def test_versions_ask_alike_and_differ_where_their_rules_changed():
    newest = {"vlmevalkit@2026-05": "vlmevalkit", "lmms_eval@2024-10": "lmms_eval"}
    changed = {
        benchmark: {
            old for old, new in newest.items() if scores(benchmark, old) != scores(benchmark, new)
        }
        for benchmark in PROTOCOLS
    }
    assert changed == {
        "videomme": {"lmms_eval@2024-10"},
        "mvbench": {"vlmevalkit@2026-05"},
        "longvideobench": set(),
        "mlvu": {"vlmevalkit@2026-05", "lmms_eval@2024-10"},
    }
    for protocols in PROTOCOLS.values():
        for name, protocol in protocols.items():
            bare = protocols[name.partition("@")[0]]
            assert (protocol.render, protocol.read_choice, protocol.macro) == (
                bare.render,
                bare.read_choice,
                bare.macro,
            )


@pytest.mark.parametrize("benchmark", sorted(PROTOCOLS))
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_what_is_written_for_a_failure_is_wrong_in_either_harness(benchmark, question):
    for name, protocol in PROTOCOLS[benchmark].items():
        for answer in (*range(len(question.choices)), None):
            asked = Question("q", question.text, question.choices, answer)
            score = protocol.harness_score(protocol.failed_reply, asked)
            if (benchmark, name.partition("@")[0]) == ("longvideobench", "lmms_eval"):
                guess = None if answer is None else 1 / len(question.choices)
                assert score == guess, "it guesses whatever names no option"
            else:
                assert not score
                assert score == 0 or answer is None
            assert is_failure(protocol.failed_reply)


SPLITS = {"activitynet_captions": {"split": "timelens"}}


@pytest.mark.parametrize("name", TASKS)
def test_prompts_scores_and_samples_are_those_of_lmms_eval_s_own_code(name, tmp_path):
    recorded, write = TASKS[name], getattr(releases, f"{name}_release")
    benchmark = load(name, write(tmp_path), protocol="lmms_eval", **SPLITS.get(name, {}))
    records, protocol = benchmark.records(), benchmark.protocol
    prompts = [protocol.render(record.question) for record in records]
    assert [prompt.before + prompt.after for prompt in prompts] == recorded["prompts"]
    ours = [
        (at, reply, protocol.harness_score(reply, records[at].question))
        for at, reply, _ in recorded.get("replies", [])
    ]
    assert ours == [
        (at, reply, pytest.approx(value)) for at, reply, value in recorded.get("replies", [])
    ]
    samples = benchmark.lmms_eval_samples
    if "targets" in recorded:
        assert [samples.target(record) for record in records] == list(map(str, recorded["targets"]))
    reply = "1 - 2" if name == "activitynet_captions" else "B"
    for record, metrics in zip(records, recorded.get("metrics", []), strict=False):
        assert samples.metrics(record, reply) == metrics
