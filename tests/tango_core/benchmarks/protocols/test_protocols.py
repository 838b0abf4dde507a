"""Prompts byte for byte, and what each version of each harness, and we, read from replies."""

import json
from collections import Counter
from pathlib import Path

import pytest
import releases
from golden_files import GOLDEN_DIR
from outside_benchmarks import WHOLE_ROWS, write_modules
from releases import PROTOCOLS, load, mlvu_release, write_json
from releases import RECORDED as TASKS

from tango_core.benchmarks import benchmark_class, build_benchmark, tables
from tango_core.benchmarks.protocols.harnesses import infer_option
from tango_core.benchmarks.protocols.protocol import harness_of, listed_name
from tango_core.benchmarks.public.tempcompass import YES_OR_NO, options_in, rated
from tango_core.benchmarks.public.temporal_grounding import charades_span, timelens_spans
from tango_core.benchmarks.public.videomme import harness_letter
from tango_core.benchmarks.scoring.judge import judge, read_span, span_iou
from tango_core.models.language.chat import QWEN_1_5
from tango_core.types import Question

GOLDEN = json.loads((GOLDEN_DIR / "prompts.json").read_text(encoding="utf-8"))
NEWER = json.loads((GOLDEN_DIR / "prompts_tempcompass_lvbench.json").read_text(encoding="utf-8"))
SCORED = json.loads((GOLDEN_DIR / "videomme_v2_charades_sta.json").read_text(encoding="utf-8"))
RECORDED = json.loads(
    (GOLDEN_DIR.parent / "recorded_scores" / "scores.json").read_text(encoding="utf-8")
)
QUESTION = Question(
    "q", "What does the man hold?", ("A cup.", "A bag.", "A book.", "A pen."), answer=1
)
LMMS_EVAL = {
    "videomme_default": ("videomme", "lmms_eval"),
    "videomme_llava_vid": ("videomme", "lmms_eval_llava_vid"),
    "mvbench": ("mvbench", "lmms_eval"),
    "longvideobench_val_v": ("longvideobench", "lmms_eval"),
    "mlvu_dev": ("mlvu", "lmms_eval"),
}
BENCHMARKS = sorted(PROTOCOLS)


def rendered(benchmark, protocol, question):
    """The prompt of one protocol."""
    return benchmark_class(benchmark).protocols[protocol].render(question)


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_vlmevalkit_s_conversations_are_the_published_ones(benchmark):
    """Around the clip, for LLaVA, Qwen and Qwen3-VL (two temporal patches of two tokens)."""
    golden, prompt = GOLDEN["vlmevalkit"][benchmark], rendered(benchmark, "vlmevalkit", QUESTION)
    parts = golden["parts"]
    clip = parts.index("V")
    assert prompt.before == "".join(parts[:clip])
    assert prompt.after == "".join(parts[clip + 1 :])
    assert QWEN_1_5.opening + "<image>" + QWEN_1_5.right(prompt) == golden["llava_onevision"]
    patch = "<|vision_start|><|video_pad|><|vision_end|>"
    qwen = QWEN_1_5.opening + prompt.before + patch + prompt.after + QWEN_1_5.closing
    assert qwen == golden["qwen2_5_vl"]
    patch = "<|vision_start|><|video_pad|><|video_pad|><|vision_end|>"
    clip = f"<0.2 seconds>{patch}<1.2 seconds>{patch}"
    user = f"<|im_start|>user\n{prompt.before}{clip}{prompt.after}<|im_end|>\n"
    assert f"{user}<|im_start|>assistant\n" == NEWER["qwen3_vl"][benchmark]["turn"]


def text_of(golden):
    """A golden text; where it is parts, "V" stands for the clip."""
    return golden if isinstance(golden, str) else "".join(part for part in golden if part != "V")


def lvbench_question(row):
    """A row's question; options are in a column or in the question."""
    text, choices = row["question"], tuple(row.get("options") or ())
    return Question("q", *((text, choices) if choices else tables.options_in(text)), 0)


# Their MLVU data hold question and options in one cell, which ends in a line break; the golden
# text names that cell.
CELL = "What does the man hold?\n(A) A cup.\n(B) A bag.\n(C) A book.\n(D) A pen.\n"
NAMED_CELL = "<question column: already holds the question and its '(A) ..' lines>"
V2 = SCORED["videomme_v2"]
EIGHT = tuple(line.partition(". ")[2] for line in V2["row"]["options"].split("\n"))
PROMPTS = [
    *(
        (*LMMS_EVAL[task], QUESTION, text.replace(NAMED_CELL, CELL))
        for task, text in GOLDEN["lmms_eval"].items()
        if task != "llava_video_time_instruction"
    ),
    *(
        ("lvbench", protocol, lvbench_question(case["row"]), case["lmms_eval"])
        for case in NEWER["lvbench"]
        for protocol in ("lmms_eval", "vlmevalkit")
    ),
    *(
        (
            "tempcompass",
            protocol,
            Question("q", case["row"]["question"], groups={"task": case["task"]}),
            text_of(case[protocol]),
        )
        for case in NEWER["tempcompass"]
        for protocol in ("vlmevalkit", "lmms_eval", "lmms_eval_plm")
    ),
    *(
        ("videomme_v2", name, Question("q", V2["row"]["question"], EIGHT, 0), text_of(golden))
        for name, golden in V2.items()
        if name not in ("row", "vlmevalkit_video_message")
    ),
    *(
        (
            "charades_sta",
            name,
            Question("q", case["row"].get("caption") or case["row"]["query"], span=(24.3, 30.4)),
            text,
        )
        for case in SCORED["charades_sta"]
        for name, text in case.items()
        if name != "row"
    ),
]


@pytest.mark.parametrize("name", sorted({name for name, *_ in PROMPTS}))
def test_prompts_are_the_harnesses_byte_for_byte(name):
    for benchmark, protocol, question, expected in PROMPTS:
        if benchmark == name:
            prompt = rendered(benchmark, protocol, question)
            assert (prompt.before, prompt.after) == ("", expected), protocol


def test_every_golden_prompt_is_compared():
    counts = Counter(name for name, *_ in PROMPTS)
    assert counts == {
        **{"videomme": 2, "mvbench": 1, "longvideobench": 1, "mlvu": 1},
        **{"lvbench": 4, "tempcompass": 48, "videomme_v2": 5, "charades_sta": 3},
    }


def test_white_space_of_the_release_is_kept_except_at_the_end_of_the_options():
    question = Question("q", " Which?\n", ("a ", "b "), 0)
    assert "Question:  Which?\n\nOptions:\n(A) a \n(B) b\nOnly" in (
        PROTOCOLS["mvbench"]["vlmevalkit"].render(question).after
    )
    assert "Question: Which?\n\nOption:\n(A) a \n(B) b \nOnly" in (
        PROTOCOLS["mvbench"]["lmms_eval"].render(question).after
    )


OURS = json.loads((Path(__file__).parent / "our_readings.json").read_text(encoding="utf-8"))
HARNESSES = [
    *((name, "vlmevalkit") for name in ("videomme", "mvbench", "longvideobench", "mlvu")),
    *((name, "lmms_eval") for name in ("videomme", "mvbench", "longvideobench")),
    ("mlvu", "lmms_eval@2024-10"),
]


def test_our_reading_is_strict_and_the_same_under_every_protocol():
    """What harnesses count for these: `test_a_rule_counts_what_its_harness_counts`."""
    for name, reply, choice in OURS:
        asked = RECORDED["questions"][name]
        question = Question("q", asked["text"], tuple(asked["choices"]), asked["answer"])
        for benchmark, protocol in HARNESSES:
            found = PROTOCOLS[benchmark][protocol].read_choice(reply, question)
            assert found == choice, (name, reply, benchmark, protocol)


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("The answer is B", "B"),
        ("B is the first of four words", "Z"),  # not among the last four words
        ("so B is what fits", "B"),
        (f"blue {'x' * 25}", "C"),  # twice as long as all options
        (f"blue {'x' * 26}", "Z"),
        ("It is B I think", "B"),
        ("A or B", "Z"),
        ("the blue one", "C"),
        ("dark red", "Z"),  # two options occur in it
        ("blue", "C"),
        ("blue " * 20, "Z"),  # more than twice as long as all options
        ("Cannot determine the answer: B", "Z"),
        ("Z", "Z"),
        ("The correct answer is **B**. Here's why: it is by far the darkest", "B"),
        ("The answer is a matter of taste, as far as I can see here", "A"),  # an article
    ],
)
def test_vlmevalkit_infers_an_option_from_text(reply, letter):
    choices = {"A": "red", "B": "dark red", "C": "blue"}
    assert infer_option(reply, choices) == letter
    if "**B**" in reply:  # before change 1552 a letter behind "answer is" did not count
        assert infer_option(reply, choices, stated=False) == "Z"


def test_vlmevalkit_compares_white_space_of_options_too():
    replies = {"Shelf ": "A", "on the shelf ": "A", "Shelf": "Z"}
    found = {reply: infer_option(reply, {"A": "Shelf ", "B": "Table"}) for reply in replies}
    assert found == replies


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_a_letter_comes_before_an_option_that_is_a_letter(benchmark):
    question = Question("q", "What letter did he write first?", ("B", "e", "s"), answer=0)
    replies = {"B": 1, "b": 1, "(A)": 0, "e": 1, "s": 2, "B) e": 1}
    for protocol in PROTOCOLS[benchmark].values():
        assert {reply: protocol.read_choice(reply, question) for reply in replies} == replies


def test_nothing_is_scored_where_the_answers_are_hidden():
    question = Question("q", "Which?", ("red", "blue"), answer=None)
    for protocol in PROTOCOLS["longvideobench"].values():
        assert protocol.harness_score("A", question) is None
        assert protocol.read_choice("A", question) == 0


def test_options_beyond_d():
    question = Question("q", "Which?", ("a1", "b2", "c3", "d4", "e5"), answer=4)
    right = {key: PROTOCOLS[key[0]][key[1]].harness_score("E", question) for key in HARNESSES}
    assert right == {key: float(key[0] != "videomme") for key in HARNESSES}


def test_a_question_without_a_right_option_is_never_right_in_mlvu():
    question = Question("q", "Which?", ("red", "blue"), answer=None)
    for protocol in PROTOCOLS["mlvu"].values():
        assert [protocol.harness_score(reply, question) for reply in ("A", "B", "red")] == [0, 0, 0]


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


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_a_bare_name_stands_for_the_newest_version_and_all_versions_ask_alike(benchmark):
    for name, protocol in PROTOCOLS[benchmark].items():
        bare, _, version = name.partition("@")
        same = PROTOCOLS[benchmark][bare]
        assert protocol.name == name, "results hold the name that the recipe gave"
        assert (protocol.render, protocol.read_choice) == (same.render, same.read_choice)
        assert protocol.macro == same.macro
        if version in ("e8e78f05", "0.7.3"):
            assert protocol.harness_score is same.harness_score


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


DATED = ["vlmevalkit@e8e78f05", "vlmevalkit@2026-05", "lmms_eval@0.7.3", "lmms_eval@2024-10"]


@pytest.mark.parametrize("name", ["vlmevalkit", "lmms_eval", *DATED])
def test_every_benchmark_takes_every_version_and_records_the_name_it_was_given(name, tmp_path):
    mlvu = build_benchmark("mlvu", root=str(mlvu_release(tmp_path)), protocol=name)
    assert mlvu.protocol.name == name
    assert mlvu.protocol.harness_score is mlvu.protocols[name].harness_score
    # The embedded world is in no harness: it has one protocol under every name.
    shapes = build_benchmark("shapes", root=str(tmp_path / "shapes"), protocol=name).protocol
    assert shapes == build_benchmark("shapes", root=str(tmp_path / "shapes")).protocol


def test_a_benchmark_of_one_s_own_need_not_list_versions(tmp_path, monkeypatch):
    write_modules(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_json(tmp_path / "whole.json", WHOLE_ROWS)
    name = "whole_bench:Whole"
    benchmark = build_benchmark(name, root=str(tmp_path), protocol="lmms_eval@2024-10")
    assert benchmark.protocol.name == "lmms_eval@2024-10"
    assert benchmark.protocol.macro
    assert listed_name(benchmark.protocols, "lmms_eval@2024-10") == "lmms_eval"


@pytest.mark.parametrize("name", ["vlmevalkit@2020-01", "vlmevalkit@", "vlmevalkit@0.7.3", "me@1"])
def test_an_unknown_version_is_refused(name, tmp_path):
    mlvu_release(tmp_path)
    with pytest.raises(ValueError, match=f"protocol '{name}'; .*vlmevalkit@2026-05"):
        build_benchmark("mlvu", root=str(tmp_path), protocol=name)


def test_what_is_asked_and_shown_depends_on_the_harness_alone():
    names = ("vlmevalkit@2026-05", "lmms_eval", "vlmevalkit@2026-05+subtitles")
    found = [harness_of(name) for name in names]
    assert found == ["vlmevalkit", "lmms_eval", "vlmevalkit+subtitles"]


TEMPCOMPASS = benchmark_class("tempcompass").protocols
MATCHING = "Which fits?\nOption 1: A man runs.\nOption 2: A man sits."
NAMED = "Which fits?\nSentence A: A man runs.\nSentence B: A man sits."
CHOICE = "Which?\nA. dunking a basketball\nB. dribbling a basketball\nC. passing a basketball"


def question(task, text, answer):
    """A question of one form of TempCompass with its right answer as the release writes it."""
    if task == "yes_no":
        return Question("q", text, YES_OR_NO, YES_OR_NO.index(answer), {"task": task})
    options = options_in(text, task)
    lines = [option.line for option in options]
    choices = tuple(option.text for option in options)
    return Question("q", text, choices, lines.index(answer), {"task": task})


@pytest.mark.parametrize("task", ["multi-choice", "caption_matching", "yes_no"])
def test_tempcompass_rules_without_a_judge_are_the_harnesses(task):
    for case in NEWER["scores"][task]:
        text = case.get("question", CHOICE if task == "multi-choice" else "Is it?")
        one = question(task, text, case["answer"])
        reply = case["reply"]
        assert rated(reply, one) == case["lmms_eval_rule"][0], reply
        for name in ("vlmevalkit", "lmms_eval"):
            assert TEMPCOMPASS[name].harness_score(reply, one) == case["vlmevalkit_no_judge"][0]


@pytest.mark.parametrize(
    ("task", "text", "replies"),
    [
        (
            "yes_no",
            "Does he?",
            {
                **dict.fromkeys(("yes", "**Yes**", "Yes, he does.", "Yes he does"), 0),
                **dict.fromkeys(("Answer: yes", "Yes - he runs", "Yes, no one else runs"), 0),
                **dict.fromkeys(("No.", "No, it is not.", "The answer is no."), 1),
                **dict.fromkeys(("No\nBecause he sits.", "No because he sits.", "No (he sits)"), 1),
                "No based on the video": 1,
                **dict.fromkeys(("No-one runs", "Yes, no", "No. Yes.", "Not sure", "None"), None),
                **dict.fromkeys(("Nobody knows", "No idea", "No one runs here", ""), None),
                **dict.fromkeys(("Yes and no", "Yes or no", "It depends"), None),
                "Yes, or rather: the answer is no": None,
            },
        ),
        (
            "caption_matching",
            MATCHING,
            {
                **dict.fromkeys(("(1)", "Option 1: A man runs."), 0),
                **dict.fromkeys(("Option 2", "2", "2. A man sits.", "A man sits"), 1),
                "The best is option 2.": 1,
                **dict.fromkeys(("B", "Option 3", "Option 1: A man sits.", "I think so", ""), None),
                **dict.fromkeys(("Option 1 or Option 2", "A man runs. A man sits."), None),
            },
        ),
        (
            "caption_matching",
            NAMED,
            {"A": 0, "Sentence B": 1, "B) A man sits.": 1, "1": None, "A man": None},
        ),
        (
            "multi-choice",
            CHOICE,
            {"A": 0, "Answer: A": 0, " B\n": 1, "(C)": 2, "passing a basketball": 2}
            | {"A or B": None, "D": None},
        ),
    ],
    ids=["yes_no", "options", "sentences", "letters"],
)
def test_our_reading_of_each_form_of_tempcompass(task, text, replies):
    one = question(task, text, "yes" if task == "yes_no" else text.split("\n")[1])
    for protocol in TEMPCOMPASS.values():
        assert {reply: protocol.read_choice(reply, one) for reply in replies} == replies


def test_captions_have_no_score_anywhere():
    caption = Question("q", "Describe it.", groups={"task": "captioning"})
    for protocol in TEMPCOMPASS.values():
        assert protocol.read_choice("B. sits", caption) is None
        assert protocol.harness_score("B. sits", caption) is None


def test_lvbench_s_score_is_lmms_evals_and_our_reading_also_knows_an_option_s_text():
    protocols, choices = benchmark_class("lvbench").protocols, ("1636", "1366", "1363", "1633")
    for case in NEWER["scores"]["lvbench_letter"]:
        for right, letter in enumerate("ABCD"):
            one = Question("q", "Which?", choices, right)
            expected = float(case["lmms_eval"] == letter)
            assert protocols["lmms_eval"].harness_score(case["reply"], one) == expected
    replies = {"1633": 3, "d": 3, "A or D": None, "(D) 1633": 3, "I see it": None}
    read = protocols["lmms_eval"].read_choice
    assert {reply: read(reply, one) for reply in replies} == replies


@pytest.mark.parametrize("case", SCORED["scores"]["letter_A_to_H"], ids=lambda case: case["reply"])
def test_letters_of_videomme_v2_are_those_of_the_harnesses(case):
    assert harness_letter(case["reply"]) == case["vlmevalkit"] == case["lmms_eval"]


# What our reader makes of the golden replies, where it is not what the harness reads.
OUR_SPANS = {
    "24.3 seconds to 30.4 seconds": (24.3, 30.4),
    "Start time: 24.3, end time: 30.4": (24.3, 30.4),
    '{"start": 24.3, "end": 30.4}': (24.3, 30.4),
    "<24.3 seconds> to <30.4 seconds>": (24.3, 30.4),
    "1 - 2, 5 - 9": None,
}


@pytest.mark.parametrize("case", SCORED["scores"]["charades_times"], ids=lambda case: case["reply"])
def test_spans_are_those_of_the_harness_and_ours_know_more_forms(case):
    reply, found = case["reply"], charades_span(case["reply"])
    assert ([] if found is None else [list(found)]) == case["charades_sta"]
    assert list(map(list, timelens_spans(reply))) == case["timelens"]
    assert read_span(reply) == OUR_SPANS.get(reply, found)


@pytest.mark.parametrize("case", SCORED["scores"]["iou"])
def test_iou_is_the_harnesses(case):
    assert span_iou(case["a"], case["b"]) == pytest.approx(case["iou"])


def test_a_span_is_right_from_half_on():
    question = Question("q", "When?", span=(10.0, 20.0))
    scores = {"10 - 20": 1.0, "10 - 30": 0.5, "10 - 31": 10 / 21, "no idea": 0.0, None: 0.0}
    for reply, score in scores.items():
        found = judge(reply, question, lambda *_: None)
        assert (found.score, found.correct) == (pytest.approx(score), score >= 0.5)
        assert (found.readable, found.answer_text) == (score > 0, "10 to 20 s")
