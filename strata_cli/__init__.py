"""The command line of Strata: what the user touches. It decides nothing about decoding; `backends` does."""

from __future__ import annotations

DISTRIBUTION = "strata"
"""The name under which the project is installed; its metadata holds the version."""


def __getattr__(name: str) -> str:
    # Looked up only when asked for: importlib.metadata costs a tenth of the start-up time.
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version(DISTRIBUTION)
        except PackageNotFoundError:
            return "0+unknown"  # run from a checkout that was never installed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
