"""How the two evaluation harnesses put each benchmark's questions and read the replies.

`vlmevalkit` is VLMEvalKit, the harness behind the published accuracies; `lmms_eval` is lmms-eval,
behind the published latencies. Their prompts, reading rules and averages differ, and none of the
differences is visible in a number afterwards: a score is only comparable with one of the same
protocol.

Every protocol reads a reply twice. `read_choice` is our own, strict reading, the same under both:
a reply that names no option, or several, is wrong. `harness_score` is what the harness itself
would have counted, faults included, for comparison with tables made by it.
"""

from __future__ import annotations

from tango_core.benchmarks.base import Protocol
from tango_core.benchmarks.names import check_name
from tango_core.benchmarks.protocols import lmms_eval, vlmevalkit

# benchmark -> protocol name -> protocol
PROTOCOLS: dict[str, dict[str, Protocol]] = {
    "videomme": {
        "vlmevalkit": vlmevalkit.VIDEOMME,
        "lmms_eval": lmms_eval.VIDEOMME,
        "lmms_eval_llava_vid": lmms_eval.VIDEOMME_LLAVA_VID,
    },
    "mvbench": {"vlmevalkit": vlmevalkit.MVBENCH, "lmms_eval": lmms_eval.MVBENCH},
    "longvideobench": {
        "vlmevalkit": vlmevalkit.LONGVIDEOBENCH,
        "lmms_eval": lmms_eval.LONGVIDEOBENCH,
    },
    "mlvu": {"vlmevalkit": vlmevalkit.MLVU, "lmms_eval": lmms_eval.MLVU},
}


def build_protocol(benchmark: str, name: str) -> Protocol:
    """Return a benchmark's protocol by name.

    Raises:
        ValueError: If there is no such protocol.
    """
    check_name("benchmark.protocol", name, PROTOCOLS[benchmark])
    return PROTOCOLS[benchmark][name]
