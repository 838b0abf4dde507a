"""`tango train-tiny`: train the embedded model from scratch and write its directory and card.

| module | holds |
|---|---|
| `command.py` | the command: all stages in order, `--resume`, progress, MLflow |
| `recipe.py` | lengths of the stages, curriculum, sizes of the model |
| `stages.py`, `loop.py` | what each stage trains on what; the loop of steps with checkpoints |
| `frames.py`, `samples.py` | training data from descriptions of generated clips |
| `curriculum.py`, `packing.py` | which samples a step uses; many questions in one sequence |
| `vision.py`, `language.py`, `projector.py`, `joint.py` | the parts of the model in training |
| `held_out.py`, `card.py`, `card.md` | accuracy on held-out clips; the model card |

Names of parameters are keys of checkpoints: they stay. Nothing else imports this package but the
command line, and it imports no `pipeline`. It is not part of the wheel.
"""
