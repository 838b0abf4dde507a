"""`tango train-tiny`: train the embedded model from scratch and write its directory and card.

| module | holds |
|---|---|
| `command.py` | the command: all stages in order, `--resume`, progress |
| `stages.py` | lengths of the stages, curriculum, what each trains on what, the loop of steps |
| `data.py` | training data from descriptions of generated clips, by step |
| `model.py` | the parts of the model in training |
| `card.py`, `card.md` | accuracy on held-out clips; the model card |

Nothing else imports this package but the command line, and it imports no `pipeline`. It is not part
of the wheel.
"""
