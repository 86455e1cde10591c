"""``python -m tracekit``, and the script ``tracekit``: the command line."""

from __future__ import annotations

import atexit
import signal
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line, and end as it says; after Ctrl-C by SIGINT, so that a shell's loop stops, too."""
    takes = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's background job ignores it
    if takes:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to say yet, and no traceback of an import
    from .cli import main as commands

    if takes:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        commands(prog_name="tracekit")
    except SystemExit as end:
        if end.code:
            from .cli.output import INTERRUPTED, end_by_interrupt

            if end.code == INTERRUPTED:
                atexit._run_exitfuncs()
                end_by_interrupt()
        raise
    raise SystemExit(0)


if __name__ == "__main__":
    main()
