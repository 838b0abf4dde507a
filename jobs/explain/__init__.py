"""`tango explain A B`: attribute the difference of two scores to causes whose points add up.

`explanation.py` compares settings and inputs, assigns one cause to every question, and computes the
points per cause, examples, and comparisons with published scores. `command.py` is the command: it
loads the two results (run, harness file or published score) and prints text in 80 columns.

May import: `jobs.harness`, `jobs.report`, `jobs.results` and what these may import. Benchmarks are
opened only to read harness files, not for runs.

To add a cause, add its name and the rule that assigns questions to it in `explanation.py`.
"""
