"""The command with a made-up data set in its table."""

import typer

from equipoise.cli.prepare import EXAMPLE, prepare
from equipoise.data.sets import PUBLISHED
from made_up import MadeUp

PUBLISHED["made-up"] = MadeUp
app = typer.Typer(pretty_exceptions_enable=False)
app.command(epilog=EXAMPLE)(prepare)

if __name__ == "__main__":
    app()
