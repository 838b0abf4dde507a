"""`tango train-tiny`: train the embedded model from scratch and write its directory and card.

| part | holds |
|---|---|
| `command.py` | the command: all stages in order, `--resume`, the files in `--output` |
| `recipe.py`, `files.py` | lengths of the stages, curriculum, sizes of the model; names of files |
| `stages.py`, `loop.py` | what each stage trains on what; the loop of steps with checkpoints |
| `display.py` | progress: bars on a terminal, lines in a log |
| `data/` | training samples from descriptions of clips |
| `networks/` | the parts of the model while they are trained |
| `evaluation/` | accuracy on held-out clips, the model card, MLflow |

`data` imports nothing of the others, `networks` imports `data`, `stages` imports both, `command`
imports all. Nothing else imports this room but the command line, and it imports no `pipeline`.
A new kind of training data goes into `data/`, a new stage into `recipe.py` and `stages.py`.
"""
