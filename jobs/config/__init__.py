"""Recipes: the schema of the YAML file, `--set` overrides, and methods with lists of values.

`bounded_yaml.py` reads YAML of any origin, `overrides.py` reads the file and applies `--set`,
`recipe.py` and `sections.py` check the result, `methods.py` expands lists of values, `controls.py`
adds controls, `method_names.py` knows the methods without importing them, `identity.py` says what
of a recipe decides results, `model_options.py` has a model's family check its own options,
`for_files.py` says what is not written into a run, `dotted.py` names nested settings, `errors.py`
writes what is wrong in one line. The room imports types of settings, names and what hides secrets
from `pipeline` and `tango_core`. A new recipe key
goes into a section of `sections.py`; if it is a path, its type is `Place`.
"""
