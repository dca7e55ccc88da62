"""The command line in: flags, environment, completion, help."""
