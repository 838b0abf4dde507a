"""Reading replies and averaging scores: letters, free-form answers, tables of means."""
