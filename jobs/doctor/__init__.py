"""`tango doctor`: checks of the machine, the stores and a recipe, before a long job starts."""
