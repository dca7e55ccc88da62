"""The command line: Typer commands, and everything that draws."""
