"""`tango train-tiny`: train the built-in model from scratch and write its directory and card.

| module | holds |
|---|---|
| `command.py` | the command: all stages in order, `--resume`, progress |
| `stages.py` | the stages: lengths, curricula, models and data; the training loop |
| `data.py` | training data per step, from descriptions of generated clips |
| `model.py` | the parts of the model in training |
| `card.py`, `card.md` | accuracy on held-out clips; the model card |

Only the command line imports this package; it does not import `pipeline` and is not part of the
wheel.
"""
