"""``python -m equipoise.cli``: the command."""

from equipoise.cli.main import main

main()
