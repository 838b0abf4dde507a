"""The layers of the architecture, read from the source: who may import whom."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from fresh_python import printed_by

ROOT = Path(__file__).parent.parent
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
        "tango_core.models.files",
        "tango_core.models.family",
        "tango_core.models.internvl",
        "tango_core.models.language",
        "tango_core.models.llava",
        "tango_core.models.qwen2_5_vl",
        "tango_core.models.qwen3_vl",
    },
    "tango_core/models/language": {
        "tango_core.models.checkpoints",
        "tango_core.models.files",
        "tango_core.models.family",
        "tango_core.models.internvl",
        "tango_core.models.llava",
        "tango_core.models.qwen2_5_vl",
        "tango_core.models.qwen3_vl",
    },
}
FAMILIES = (
    "tango_core.models.internvl",
    "tango_core.models.llava",
    "tango_core.models.qwen2_5_vl",
    "tango_core.models.qwen3_vl",
)
# No family imports another.
FORBIDDEN |= {own.replace(".", "/"): {*FAMILIES} - {own} for own in FAMILIES}
# Rooms of `jobs` (packages and single modules) from the bottom to the top: a room imports only from
# levels below its own. A new room gets its place here.
JOBS_LEVELS = (
    {"config", "exit_codes", "extras", "memory", "units"},
    {"results"},
    {"viewer"},
    {"estimate", "notebook", "report", "tracking"},
    {"run"},
    {"analysis", "ask", "cache", "data_check", "harness", "load", "submit", "training"},
    {"explain", "fetch", "runs"},
    {"doctor"},
    {"cli"},
    {"demo"},
)


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Absolute names of the modules a file imports at run time, inside functions too."""
    names: set[str] = set()
    for node in _run_time_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return frozenset(names)


def _run_time_nodes(tree: ast.AST):
    """All nodes but those under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        yield node
        yield from _run_time_nodes(node)


@pytest.mark.parametrize("package", FORBIDDEN)
def test_a_layer_imports_nothing_above_it(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in imports_of(path)
        for forbidden in FORBIDDEN[package]
        if name == forbidden or name.startswith(f"{forbidden}.")
    }
    assert not found


def _module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _targets(path, modules):
    """The modules that a file imports, of some."""
    found = set()
    for node in _run_time_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & modules.keys()) or {node.module}
    return found & modules.keys()


PRODUCT = {
    _module_of(path): path
    for package in ("tango_core", "pipeline", "jobs")
    for path in sorted((ROOT / package).rglob("*.py"))
}
MOST_MODULES = 15
# A family is described without its networks: it imports these inside of functions, and they import
# what it states about itself.
LOADED_LATER = {
    "tango_core.models.family": {
        "tango_core.models.files",
        "tango_core.models.language_half",
        "tango_core.models.question",
    },
}


def test_no_module_imports_itself_by_way_of_others():
    """Imports inside functions count, too, and those for type checking alone do not."""
    left = {
        name: _targets(path, PRODUCT) - {name} - LOADED_LATER.get(name, set())
        for name, path in PRODUCT.items()
    }
    while free := [name for name, targets in left.items() if not targets & left.keys()]:
        left = {name: targets for name, targets in left.items() if name not in free}
    assert not left


def test_a_package_has_fifteen_modules_at_most():
    for folder in {path.parent for path in PRODUCT.values()}:
        own = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(own) <= MOST_MODULES, folder


def test_the_pipeline_knows_of_benchmarks_only_how_they_ask_and_score():
    asked = {
        "tango_core.benchmarks.base",
        "tango_core.benchmarks.protocols.subtitles",
        "tango_core.benchmarks.scoring.judge",
    }
    used = set[str]().union(*map(imports_of, (ROOT / "pipeline").rglob("*.py")))
    assert {name for name in used if name.startswith("tango_core.benchmarks")} <= asked


@pytest.mark.parametrize("package", ["checkpoints", "language", "towers"])
def test_no_module_of_a_package_of_models_needs_itself_through_another_one(package):
    """Names that only annotations need count, too."""
    name = f"tango_core.models.{package}"
    needs = {}
    for path in (ROOT / name.replace(".", "/")).glob("*.py"):
        tree = ast.walk(ast.parse(path.read_text()))
        targets = {node.module for node in tree if isinstance(node, ast.ImportFrom)}
        needs[f"{name}.{path.stem}"] = targets
    while needs:
        free = {module for module, targets in needs.items() if not targets & {*needs} - {module}}
        assert free, sorted(needs)
        needs = {module: targets for module, targets in needs.items() if module not in free}


def test_what_all_models_share_knows_no_family():
    """The table names families as text, and the embedded model builds a checkpoint of one."""
    shared = list((ROOT / "tango_core" / "models").glob("*.py"))
    assert {path.name for path in shared} > {"__init__.py", "base.py", "family.py", "options.py"}
    found = {
        f"{path.name}: {name}"
        for path in shared
        for name in imports_of(path)
        if name.startswith(FAMILIES)
    }
    assert not found


def rooms_of_jobs():
    """Room -> its files."""
    rooms = {}
    for path in sorted((ROOT / "jobs").rglob("*.py")):
        room = path.relative_to(ROOT / "jobs").with_suffix("").parts[0]
        if room != "__init__":
            rooms.setdefault(room, []).append(path)
    return rooms


def test_every_room_of_jobs_has_one_level():
    listed = [room for level in JOBS_LEVELS for room in level]
    assert sorted(listed) == sorted(rooms_of_jobs())


@pytest.mark.parametrize("level", range(len(JOBS_LEVELS)))
def test_a_room_of_jobs_imports_only_rooms_below_it(level):
    below = {room for rooms in JOBS_LEVELS[:level] for room in rooms}
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for room in JOBS_LEVELS[level]
        for path in rooms_of_jobs()[room]
        for name in imports_of(path)
        if name.startswith("jobs.") and name.split(".")[1] not in {room, *below}
    }
    assert not found


def test_options_of_models_are_checked_without_heavy_libraries():
    code = (
        "import sys\n"
        "from jobs.config.recipe import parse_job\n"
        "for name, options in (('llava-video-7b', {'pooling': 'bilinear'}),\n"
        "                      ('internvl3.5-8b', {'frame_label': 'lmms_eval'}),\n"
        "                      ('qwen2.5-vl-7b', {'max_pixels': 640}), ('tiny', {})):\n"
        "    parse_job({'benchmark': {'name': 'shapes'}, 'method': {'name': 'full'},\n"
        "               'model': {'name': name, **options}}, 'recipe')\n"
        "print(sorted({'torch', 'ray', 'transformers', 'pyarrow'} & set(sys.modules)))"
    )
    assert printed_by(code) == "[]"


def test_a_model_is_described_without_the_code_of_its_networks():
    """What was not imported after all families was imported by none of them."""
    families = ", ".join(f"{family}.files" for family in FAMILIES)
    code = (
        f"import sys, {families}, tango_core.models.tiny\n"
        "print(sorted({'transformers.modeling_utils', 'torch._dynamo'} & set(sys.modules)))"
    )
    assert printed_by(code) == "[]"


def test_tables_know_neither_page_nor_plots():
    files = sorted((ROOT / "jobs" / "report" / "tables").glob("*.py"))
    rooms = ("page", "plots", "difference_plots", "compare", "theme")
    above = {f"jobs.report.{name}" for name in rooms}
    assert not {(path.name, name) for path in files for name in imports_of(path) & above}


def test_a_decode_worker_loads_neither_torch_nor_ray():
    code = (
        "import sys, tango_core.types, tango_core.video.decode, tango_core\n"
        "tango_core.decode_frames\n"
        "print(sorted({'torch', 'ray', 'transformers', 'pyarrow'} & set(sys.modules)))"
    )
    assert printed_by(code) == "[]"


def test_help_does_not_wait_for_heavy_libraries():
    code = (
        "import sys, jobs.cli.main\n"
        "print(sorted({'torch', 'ray', 'transformers', 'mlflow', 'matplotlib'} & set(sys.modules)))"
    )
    assert printed_by(code) == "[]"
