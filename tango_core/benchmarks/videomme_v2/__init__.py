"""Video-MME-v2: the release in `benchmark.py`, its groups of questions in `groups.py`.

Prompt, score and files of a harness are in one module each; what both harnesses share of them is in
`prompts.py` and `letters.py`. Imports `annotations`, `protocols` and `scoring`, no other benchmark.
"""
