"""`python -m cli`, which is what `torchrun -m cli` starts."""

from cli.main import main

main()
