"""The command: every subcommand has a file here, `--help` with an example, and one message for bad input."""

import sys
from importlib import import_module
from typing import Annotated, Any, final

from equipoise.util.extras import needs

# What a word has an extra of its own for, that brings all it needs; the others need what training does.
with needs(
    "the command", next((word for word in sys.argv[1:2] if word in {"predict", "export", "tune", "control"}), "train")
):
    import typer
    from typer.core import TyperCommand

from equipoise.cli import lists, options
from equipoise.training import launch
from equipoise.util.errors import BadInput, FailedRuns, printable, require_utf8
from equipoise_command import INTERRUPTED, say_stopped

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
COMMANDS = ("compare", "train", "report", "diagnose", "methods", "datasets", "presets", "check", "prepare", "toy")
COMMANDS += (
    "robustness",
    "landscape",
    "ablate",
    "reproduce",
    "tune",
    "predict",
    "export",
    "monitor",
    "bench",
    "control",
    "version",
)


@final
class Command(TyperCommand):
    """A subcommand, some of whose options may stand without their value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a command line."""
        left = super().parse_args(ctx, options.with_values(args))
        options.check_sizes(ctx.params)
        return left


for _name in COMMANDS:  # one file a command, but for those that only list what there is
    _module = lists if hasattr(lists, _name) else import_module(f"equipoise.cli.{_name}")
    app.command(_name, cls=Command, epilog=getattr(_module, "EXAMPLE", lists.EXAMPLES.get(_name)))(
        getattr(_module, _name)
    )


def _print_version(asked: bool) -> None:
    if asked:
        lists.version()
        raise typer.Exit


@app.callback(epilog="Example: equipoise --version")
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Balanced multi-modal learning: compare methods, train, tune, measure and ship."""


def main() -> None:
    """Run the command; bad input ends with exit code 2 and one message, Ctrl-C with how to go on."""
    try:
        require_utf8(sys.argv[1:])
        launch.silence_other_ranks(sys.argv[1:])
        code = app(standalone_mode=False)  # None, or an exit code where a command did not come to its end
        if code == INTERRUPTED:
            raise KeyboardInterrupt  # the parser made a code of it
        sys.exit(code or 0)
    except (typer.Abort, KeyboardInterrupt):
        say_stopped()
        sys.exit(INTERRUPTED)
    except (BadInput, OSError, ModuleNotFoundError) as error:
        launch.print_error(f"equipoise: {error}", known_to_all=isinstance(error, BadInput))
        sys.exit(2)
    except FailedRuns as error:
        others = "the others are kept: `equipoise report` shows them"
        print(printable(f"equipoise: some runs failed; {others}.\n{error}"), file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        if hasattr(error, "format_message"):  # how the parser of the command line says what is wrong with it
            launch.print_error(options.parser_message(error))
            sys.exit(2)
        raise


if __name__ == "__main__":
    main()
