"""The layers of the architecture, read from the source: which module may import which."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from fresh_python import printed_by

ROOT = Path(__file__).parent.parent
FAMILIES = {f"tango_core.models.{name}" for name in ("internvl", "llava", "qwen2_5_vl", "qwen3_vl")}
FORBIDDEN = {
    "tango_core": {"ray", "mlflow", "pyarrow", "pandas", "pipeline", "jobs"},
    "pipeline": {"mlflow", "jobs", "typer", "matplotlib"},
    "pipeline/stages": {"ray", "pipeline.executors", "pipeline.run"},
    "pipeline/storage": {"ray", "pipeline.cache", "pipeline.stages", "pipeline.plan"},
    "pipeline/runtime": {"ray", "pyarrow", "pipeline.cache", "pipeline.plan", "pipeline.stages"},
    "pipeline/progress": {"ray", "pipeline.cache", "pipeline.plan", "pipeline.stages"},
    "pipeline/cache": {"ray", "pipeline.executors", "pipeline.stages", "pipeline.plan"},
    "tango_core/ops": {"tango_core.compressors", "tango_core.models", "tango_core.benchmarks"},
    "tango_core/compressors": {"tango_core.models", "tango_core.benchmarks", "transformers"},
    "tango_core/benchmarks": {"tango_core.compressors", "tango_core.models", "torch"},
    "tango_core/models/checkpoints": {
        "tango_core.compressors",
        "tango_core.models.base",
        "tango_core.models.family",
        "tango_core.models.language",
        *FAMILIES,
    },
    "tango_core/models/language": {
        "tango_core.models.checkpoints",
        "tango_core.models.family",
        *FAMILIES,
    },
    # No family imports another one.
    **{family.replace(".", "/"): FAMILIES - {family} for family in FAMILIES},
    "jobs/report/tables": {
        f"jobs.report.{name}" for name in ("page", "plots", "charts", "compare", "theme")
    },
}
HEAVY = {"torch", "ray", "transformers", "pyarrow", "mlflow", "matplotlib"}
MOST_MODULES = 15
# A family is described without its networks: it imports these inside of functions, and they import
# what it states about itself.
LOADED_LATER = {
    "tango_core.models.family": {"tango_core.models.language_half"},
}


def _module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


PRODUCT = {
    _module_of(path): path
    for package in ("tango_core", "pipeline", "jobs")
    for path in sorted((ROOT / package).rglob("*.py"))
}


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Absolute names of the modules a file imports, inside functions too; not for annotations."""
    found = set[str]()
    nodes: list[ast.AST] = [ast.parse(path.read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if names <= PRODUCT.keys() else names & PRODUCT.keys() | {node.module}
        if not (isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"):
            nodes += ast.iter_child_nodes(node)
    return frozenset(found)


def _forbidden_imports(files, forbidden):
    return {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in imports_of(path)
        if any(name == one or name.startswith(f"{one}.") for one in forbidden)
    }


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_a_layer_imports_nothing_above_it(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    assert not _forbidden_imports(files, FORBIDDEN[package])


def test_what_all_models_share_knows_no_family():
    """The table names families as text, and the embedded model builds a checkpoint of one."""
    assert not _forbidden_imports((ROOT / "tango_core" / "models").glob("*.py"), FAMILIES)


def refuse_cycles(graph):
    """Raise an error that names the modules of a cycle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])), pytrace=False)


def test_no_module_imports_itself_by_way_of_others():
    graph = {name: imports_of(path) & PRODUCT.keys() - {name} for name, path in PRODUCT.items()}
    refuse_cycles({name: graph[name] - LOADED_LATER.get(name, set()) for name in graph})


@pytest.mark.parametrize("top", ["pipeline", "jobs"])
def test_no_package_imports_itself_by_way_of_others(top):
    graph = {}
    for name, path in PRODUCT.items():
        if name.startswith(f"{top}."):
            used = {
                other.split(".")[1] for other in imports_of(path) if other.startswith(f"{top}.")
            }
            own = name.split(".")[1]
            graph[own] = graph.get(own, set()) | used - {own}
    refuse_cycles(graph)


def test_a_package_has_fifteen_modules_at_most():
    for folder in {path.parent for path in PRODUCT.values()}:
        own = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(own) <= MOST_MODULES, folder


def test_vllm_is_imported_by_its_own_modules_alone():
    found = {
        path.name
        for path in PRODUCT.values()
        if any(name.split(".")[0] == "vllm" for name in imports_of(path))
    }
    assert found
    assert all(name.startswith("vllm_") for name in found)


def test_the_pipeline_knows_of_benchmarks_only_how_they_ask_and_score():
    allowed = {
        "tango_core.benchmarks.base",
        "tango_core.benchmarks.protocols.subtitles",
        "tango_core.benchmarks.scoring.judge",
    }
    used = set[str]().union(*map(imports_of, (ROOT / "pipeline").rglob("*.py")))
    assert {name for name in used if name.startswith("tango_core.benchmarks")} <= allowed


CHECKED_OPTIONS = """
from jobs.config.recipe import parse_job
for name, options in (('llava-video-7b', {'pooling': 'bilinear'}),
                      ('internvl3.5-8b', {'frame_label': 'lmms_eval'}),
                      ('qwen2.5-vl-7b', {'max_pixels': 640}), ('tiny', {})):
    parse_job({'benchmark': {'name': 'shapes'}, 'method': {'name': 'full'},
               'model': {'name': name, **options}}, 'recipe')
"""
DESCRIBED = "import tango_core.models; tango_core.models.describe_model('tiny')"
DECODING = "import tango_core.video.decode, tango_core; tango_core.decode_frames"


@pytest.mark.parametrize(
    ("code", "unused"),
    [
        pytest.param("import jobs.cli.main", HEAVY, id="help"),
        pytest.param(DECODING, HEAVY, id="a decode worker"),
        pytest.param(CHECKED_OPTIONS, HEAVY, id="options of models"),
        pytest.param(DESCRIBED, {"transformers.modeling_utils", "torch._dynamo"}, id="families"),
    ],
)
def test_heavy_libraries_are_not_imported_where_nothing_needs_them(code, unused):
    assert printed_by(f"{code}\nimport sys\nprint({unused} & set(sys.modules))") == "set()"
