"""Methods that prune inside the language model (`LayerPruner`), one file each.

`schedules.py` turns an average over the layers into what each layer keeps.
"""
