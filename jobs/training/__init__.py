"""`tango train-tiny`: train the built-in model from scratch and write its directory.

| module | contents |
|---|---|
| `command.py` | the command and `--resume`; the stages: lengths, curricula and the training loop |
| `data.py` | labelled frames, clips with tokenised questions by step, packing into sequences |
| `model.py` | the parts of the model in training |

Only the command line imports this package; it does not import `pipeline` and is not part of the
wheel. `tango evaluate` measures the result like any other checkpoint (`model.path`).
"""
