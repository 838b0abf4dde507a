"""Protocols: how questions are rendered and replies are scored.

`vlmevalkit` is VLMEvalKit, the harness behind the published accuracies; `lmms_eval` is lmms-eval,
behind the published latencies. Their prompts, reading rules and averages differ, and none of the
differences is visible in a number afterwards: a score is only comparable with one of the same
protocol.

Every protocol reads a reply twice. `read_choice` is our own, strict reading, the same under both:
a reply that names no option, or several, is wrong. `harness_score` is what the harness itself
would have counted, faults included, for comparison with tables made by it. Harnesses change: a
protocol can be named with the version whose counting it follows (`VERSIONS`).

The prompts and scores of one benchmark are in its own module; its class lists its protocols by
name. This package may import `scoring` and `tango_core.types`.
"""
