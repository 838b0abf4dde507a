"""The layers of the architecture, read from the source: who may import whom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from fresh_python import printed_by

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    "tango_core": {"ray", "mlflow", "pyarrow", "pandas", "pipeline", "jobs"},
    "pipeline": {"mlflow", "jobs", "typer", "matplotlib"},
    "pipeline/stages": {"ray", "pipeline.executors", "pipeline.run"},
    "pipeline/cache": {"ray", "pipeline.executors", "pipeline.stages", "pipeline.plan"},
    "tango_core/ops": {"tango_core.compressors", "tango_core.models", "tango_core.benchmarks"},
    "tango_core/compressors": {"tango_core.models", "tango_core.benchmarks", "transformers"},
    "tango_core/benchmarks": {"tango_core.compressors", "tango_core.models", "torch"},
}


def imports_of(path: Path) -> set[str]:
    """Absolute names of the modules a file imports at run time, inside functions too."""
    names: set[str] = set()
    for node in _run_time_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


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
