"""`strata` on the stand-in engine, as a process: python -m tests.strata_cli.run_fake [--endless] ARGUMENTS..."""

import signal
import sys

from strata_cli.main import main
from tests.strata_cli.fake_backend import Script, install

if __name__ == "__main__":
    # A test run in the background of a shell inherits an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments = sys.argv[1:]
    endless = arguments[:1] == ["--endless"]
    install(Script(pieces=["some text\n"], endless=endless))
    sys.exit(main(arguments[endless:]))
