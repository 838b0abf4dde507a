"""`tango train-tiny`: train the built-in model from scratch and write its directory.

| module | contents |
|---|---|
| `command.py` | the command: all stages in order, `--resume`, progress |
| `stages.py` | the stages: lengths, curricula, models and data; the training loop |
| `curriculum.py` | clips and questions of every step, packed into sequences |
| `data.py` | labelled frames and tokenised questions, from descriptions of generated clips |
| `model.py` | the parts of the model in training |

Only the command line imports this package; it does not import `pipeline` and is not part of the
wheel. `tango evaluate` measures the result like any other checkpoint (`model.path`).
"""
