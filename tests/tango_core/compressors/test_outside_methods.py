"""Methods from outside the package: how they are found, named, identified, edited and refused."""

import importlib
import re
import sys
from pathlib import Path

import pytest
from methods_as_files import COMPRESS, FIRST, HEAD, forget

from pipeline.cache.directory import open_cache
from tango_core import code_identity, extensions
from tango_core.compressors import build_method
from tango_core.compressors.contract import check_method
from tango_core.compressors.contract.inputs import make_clip
from tango_core.compressors.in_llm.fastv import FastV
from tango_core.models import describe_model

README = Path(importlib.import_module("tango_core.compressors").__file__).parent / "README.md"


def test_the_method_of_the_readme_runs_and_keeps_the_contract(write):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    write("my_methods.py", code)
    method = build_method("my_methods:LargestNorm", retention=0.25, order=1)
    assert method.name == "LargestNorm"
    assert method.options == {"retention": 0.25, "order": 1.0}
    features = make_clip()
    kept = method.compressor.compress(features)
    norms = features.tokens.flatten(0, 1).abs().sum(dim=-1)
    assert kept.indices.tolist() == sorted(norms.topk(kept.num_total // 4).indices.tolist())
    assert [result for result in check_method("my_methods:LargestNorm") if result.failure] == []


def test_the_cache_of_a_method_is_named_by_its_code(write, tmp_path):
    model = describe_model("tiny")

    def cache():
        forget("first_module", "first_helper", "first_constants")
        compressor = build_method("first_module:First", retention=0.25).compressor
        return open_cache(str(tmp_path), model, compressor).name

    write("first_module.py", "import first_helper\n" + FIRST)
    write("first_helper.py", "from first_constants import START\n")
    write("first_constants.py", "START = 0\n")
    names = [cache(), cache()]
    assert names[0] == names[1]
    assert re.fullmatch(r"tiny-8f-first-r0\.25-[0-9a-f]{12}", names[0])
    write("first_module.py", "import first_helper\n" + FIRST + "# edited\n")
    names.append(cache())
    write("first_constants.py", "START = 1  # imported by a helper, not by the method\n")
    names.append(cache())
    assert len(set(names)) == 3
    write("not_imported.py", "")
    assert cache() == names[-1]


def test_modules_of_a_package_count_as_well(write):
    def digest():
        forget("pack", "pack.methods", "pack.inner", "pack.inner.helper")
        return build_method("pack.methods:First", retention=0.25).compressor.identity()

    write("pack/__init__.py", "")
    write("pack/inner/__init__.py", "")
    write("pack/inner/helper.py", "VALUE = 0\n")
    write("pack/methods.py", "from .inner import helper\n" + FIRST)
    first = digest()
    write("pack/inner/helper.py", "VALUE = 1\n")
    second = digest()
    assert first.pop("source_digest") != second.pop("source_digest")
    assert first == second == {"name": "first", "retention": 0.25, "step": 1}


def test_a_method_named_like_a_shipped_one_is_told_apart(write):
    name = "lower_module:tango"
    write("lower_module.py", FIRST.replace("class First", "class tango"))
    own, shipped = build_method(name, retention=0.5), build_method("tango", retention=0.5)
    assert (own.name, shipped.name) == (name, "tango")
    assert own.compressor.identity() != shipped.compressor.identity()
    assert own.compressor.identity()["name"] == "tango"


def test_a_pruner_from_outside_runs_inside_the_model(write):
    write(
        "pruner_module.py",
        "from tango_core.compressors.in_llm.fastv import FastV\n"
        "from dataclasses import dataclass\n\n"
        "@dataclass(frozen=True)\nclass Mine(FastV):\n    pass\n",
    )
    method = build_method("pruner_module:Mine", retention=0.25, num_layers=28)
    assert type(method.pruner).__name__ == "Mine"
    assert method.compressor.identity() == {"name": "full"}
    assert [
        result for result in check_method("pruner_module:Mine", quick=True) if result.failure
    ] == []


def test_an_installed_package_announces_methods_by_name(write, tmp_path):
    write("announced_module.py", FIRST)
    write("announced-1.dist-info/METADATA", "Name: announced\nVersion: 1\n")
    write(
        "announced-1.dist-info/entry_points.txt",
        "[tango_video.methods]\nfirst-ones = announced_module:First\n",
    )
    sys.path.append(str(tmp_path))
    extensions.announced.cache_clear()
    try:
        method = build_method("first-ones", retention=0.5)
        assert (method.name, type(method.compressor).__name__) == ("first-ones", "First")
        with pytest.raises(ValueError, match="'first-one'; did you mean 'first-ones'"):
            build_method("first-one")
    finally:
        extensions.announced.cache_clear()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("First = 3", "'wrong_module:First' is not a class but 3; name the class itself"),
        ("class First: pass", "is a subclass of neither Compressor nor LayerPruner; make it one"),
        (
            HEAD + "class First(Compressor):\n" + COMPRESS,
            r"is not a dataclass; write @dataclass\(frozen=True\) above class First",
        ),
        (
            HEAD + "@dataclass\nclass First(Compressor):\n" + COMPRESS,
            r"wrong_module.py, line \d+\): TypeError: cannot inherit non-frozen dataclass",
        ),
        (
            HEAD + "@dataclass(frozen=True)\nclass First(Compressor):\n    step: int = 1\n",
            "does not define _plan; define it",
        ),
        (
            HEAD + "@dataclass(frozen=True)\nclass First(LayerPruner):\n    step: int = 1\n",
            "does not define prune; define it",
        ),
        ("class Other: pass", "cannot be loaded: AttributeError: .* has no attribute 'First'"),
        ("import not_there_at_all", "No module named 'not_there_at_all'; install the package"),
        ("1 / 0", r"cannot be loaded \(wrong_module.py, line 1\): ZeroDivisionError"),
        ("def (", r"SyntaxError: .*wrong_module.py, line 1"),
        (
            FIRST.replace("step: int = 1", "step: 'Missing' = 1"),
            "the types of its options cannot be read: name 'Missing' is not defined",
        ),
    ],
)
def test_what_is_no_method_is_an_error_that_says_what_is_missing(write, text, message):
    write("wrong_module.py", text)
    with pytest.raises(ValueError, match=message) as error:
        build_method("wrong_module:First", retention=0.5)
    assert "\n" not in str(error.value)


def test_a_module_that_is_not_there_is_an_error_that_says_where_to_start():
    with pytest.raises(ValueError, match="start in the directory that holds nowhere_at_all"):
        build_method("nowhere_at_all.module:First")


def test_a_class_that_was_not_read_from_a_file_has_no_identity():
    scope = {"__name__": "built_in_memory"}
    sys.modules["built_in_memory"] = type(sys)("built_in_memory")
    try:
        exec(FIRST, scope)
        with pytest.raises(ValueError, match=r"has no source file.*move it to a \.py file"):
            scope["First"](0.5).identity()
    finally:
        del sys.modules["built_in_memory"]


# Text of a compressor's body -> the promise that it breaks.
BROKEN = {
    "torch.manual_seed(torch.seed())\n        return select(features, "
    "torch.randperm(total)[: num_kept(total, self.retention)].sort().values)": (
        "same input, same output"
    ),
    "features.tokens[0] += 1\n        return select(features, "
    "torch.arange(num_kept(total, self.retention)))": "does not change its input",
    "return select(features, torch.arange(total))": "keeps no more than the promised share",
    "return select(features, torch.arange(1))": (
        "keeps no less than the promised share where nothing repeats"
    ),
    "return features.tokens": "indices ascend, are unique and in range",
    "return select(features, features.saliency.flatten().topk(num_kept(total, self.retention))"
    ".indices.sort().values)": "reads only the signals in needs",
    "kept = select(features, torch.arange(num_kept(total, self.retention)))\n"
    "        return type(kept)(kept.tokens.double(), kept.indices, kept.grid, kept.timestamps)": (
        "keeps dtype and device"
    ),
    "shift = 'pytest' in sys.modules\n        return select(features, shift + "
    "torch.arange(num_kept(total - 1, self.retention)))": "same output in another process",
}


@pytest.mark.parametrize("body", BROKEN)
def test_a_broken_promise_is_found(write, body):
    text = FIRST.partition("    def _compress")[0]
    text = (
        "import sys\n"
        + text
        + "    def _compress(self, features):\n        total = features.tokens[..., 0].numel()\n"
    )
    write("broken_module.py", f"{text}        {body}\n")
    results = check_method("broken_module:First", quick="another process" not in BROKEN[body])
    failure = next(result.failure for result in results if result.promise == BROKEN[body])
    assert failure
    assert "\n" not in failure


def test_a_method_inside_the_language_model_is_known_by_what_it_derives_from_as_well(
    tmp_path, monkeypatch
):
    (tmp_path / "my_steps.py").write_text(
        "from tango_core.compressors.in_llm.fastv import FastV\n\n\nclass Mine(FastV):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    mine = importlib.import_module("my_steps").Mine
    before = [code_identity.pruner_identity(cls) for cls in (mine, FastV)]
    assert len(set(before)) == 2
    monkeypatch.setattr(code_identity, "edited_digest", lambda **_: "edited")
    assert not set(before) & {code_identity.pruner_identity(cls) for cls in (mine, FastV)}


def test_the_digest_is_that_of_the_code_that_was_imported(write):
    write("kept_module.py", FIRST)
    before = build_method("kept_module:First", retention=0.5).compressor.identity()
    write("kept_module.py", FIRST + "# edited after the import\n")
    assert build_method("kept_module:First", retention=0.5).compressor.identity() == before


def test_an_edit_between_import_and_first_use_is_not_taken_for_what_runs(write):
    def digest():
        return build_method("late_module:First", retention=0.5).compressor.identity()

    write("late_module.py", FIRST)
    before = digest()
    forget("late_module")
    importlib.import_module("late_module")
    write("late_module.py", FIRST.replace("total,", "total - 1,"))
    assert digest() == before, "of the code that was imported"
    forget("late_module")
    assert digest() != before
