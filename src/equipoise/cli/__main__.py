"""``python -m equipoise.cli``: the command."""

from equipoise.cli.main import main

if __name__ == "__main__":
    main()
