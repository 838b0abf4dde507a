"""No loop of the core waits for a device in every turn.

The budgets of the other files say how often methods wait; this looks at the code itself, also where
no test runs it. Models are not looked at: what they read while they write an answer is theirs.
"""

import ast
from pathlib import Path

import tango_core

CORE = Path(tango_core.__file__).parent
FILES = sorted(
    path
    for path in CORE.rglob("*.py")
    if path.relative_to(CORE).parts[0] not in ("models", "benchmarks", "video")
)
LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
WAITS = {"item", "cpu"}


def waits_in_loops(source):
    """Lines on which something in a loop is fetched from a device."""
    return sorted(
        {
            call.lineno
            for loop in ast.walk(ast.parse(source))
            if isinstance(loop, LOOPS)
            for call in ast.walk(loop)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in WAITS
        }
    )


def test_no_loop_fetches_from_a_device():
    found = {str(path): waits_in_loops(path.read_text()) for path in FILES}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_such_loops_are_found():
    source = "for x in xs:\n    y = x.item()\nz = [x.cpu() for x in xs]\nw = xs.cpu()\n"
    assert waits_in_loops(source) == [2, 3]
