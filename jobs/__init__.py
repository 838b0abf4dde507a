"""What a user starts: commands, recipes, results, tracking."""
