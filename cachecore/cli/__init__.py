"""The `cachecore` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from cachecore.cli import backends, doctor, explain
from cachecore.cli.demo import command as demo_command
from cachecore.errors import CacheError

__all__ = ["main"]

# Each has NAME, HELP, add_arguments(parser) and run(arguments) -> exit code, and imports what it needs in run().
_COMMANDS = (demo_command, backends, doctor, explain)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments without the program's name; None = those of the process.

    Returns:
        0 for success; 1 when the work failed, with the reason on standard error. A wrong command line exits with 2.
    """
    parser = argparse.ArgumentParser(
        prog="cachecore", description="Register paged KV caches and move their blocks between LLM serving processes."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in _COMMANDS:
        subparser = commands.add_parser(module.NAME, help=module.HELP, description=module.HELP)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run, parser=subparser)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except CacheError as error:
        print(f"{arguments.parser.prog}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{arguments.parser.prog}: interrupted", file=sys.stderr)
        return 130
    return code
