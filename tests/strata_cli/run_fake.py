"""`strata` on the stand-in engine, as a process: python -m tests.strata_cli.run_fake [--endless | --stuck | --slow] ARGUMENTS..."""

import signal
import sys
import threading

from strata_cli.main import main
from tests.strata_cli.fake_backend import Engine, Script, install

if __name__ == "__main__":
    # A test run in the background of a shell inherits an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments = sys.argv[1:]
    mode = arguments.pop(0) if arguments[:1] in (["--endless"], ["--stuck"], ["--slow"]) else ""
    install(Script(pieces=["some text\n"], endless=mode in ("--endless", "--stuck"), delay=0.003 if mode == "--slow" else 0))
    if mode == "--stuck":  # a device that never comes to an end
        forever = threading.Event()
        threading.Thread(target=forever.wait, args=(120,)).start()  # not so long that a failing test would hang
        Engine.close = lambda self: forever.wait() and None  # type: ignore[method-assign]
    sys.argv[1:] = arguments
    sys.exit(main())
