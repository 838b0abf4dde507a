"""The core on a machine that has torch and numpy, and none of our other dependencies."""

from fresh_python import printed_by

from tango_core import METHODS

# What `pip install torch numpy` brings along.
ALONE = """
import sys

ALLOWED = {
    "torch", "functorch", "torchgen", "numpy", "typing_extensions", "filelock", "fsspec", "jinja2",
    "markupsafe", "mpmath", "networkx", "sympy", "setuptools", "triton", "nvidia", "tango_core",
}


class OnlyTorchAndNumpy:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in ALLOWED or top in sys.stdlib_module_names or top.startswith("_"):
            return None
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, OnlyTorchAndNumpy())
"""


def test_every_method_runs_with_torch_and_numpy_alone():
    code = """
import tango_core
from tango_core import METHODS, build_method
from tango_core.compressors.contract import check_method
from tango_core.compressors.contract.inputs import make_clip
from tango_core.compressors.contract.inputs import SyntheticPrompt, run_layers
from tango_core.compressors.options import option_names

for name in METHODS:
    options = {"retention": 0.3} if "retention" in option_names(METHODS[name]) else {}
    method = build_method(name, **options)
    kept = method.compressor.compress(make_clip()).num_kept
    if method.pruner is not None:
        kept = run_layers(method.pruner, 28, SyntheticPrompt())[0][-1]
    print(name, kept > 0)
print(tango_core.VisualFeatures.__name__, tango_core.LatencyProfile.__name__)
print(check_method("uniform", {"retention": 0.3})[0])
try:
    import pandas
except ModuleNotFoundError as error:
    print(error)
"""
    lines = printed_by(ALONE + code).splitlines()
    assert lines[:-3] == [f"{name} True" for name in METHODS]
    assert lines[-3:] == [
        "VisualFeatures LatencyProfile",
        "CheckResult(promise='indices ascend, are unique and in range', failure=None)",
        "No module named 'pandas'",  # or this test would show nothing
    ]
