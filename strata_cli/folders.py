"""Where the platform keeps a user's settings and caches, and where the data files are that come with Strata."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from backends.errors import StrataError


def config_file(environ: Mapping[str, str]) -> str:
    """The user config's path, whether or not there is one."""
    return os.path.join(_base(environ, "XDG_CONFIG_HOME", ".config", "APPDATA"), "strata", "config.toml")


def cache_folder(environ: Mapping[str, str]) -> str:
    """The default folder for compiled programs."""
    folder = os.path.join(_base(environ, "XDG_CACHE_HOME", ".cache", "LOCALAPPDATA"), "strata")
    # Windows has one folder for all that is local to a machine, so a cache says there what it is.
    return os.path.join(folder, "cache") if sys.platform == "win32" else folder


def data_folder(named: str | None) -> Path:
    """The folder of the data files: `named` (STRATA_DATA's) if given, the checkout's, or where an installation puts them.

    Raises StrataError if there is none.
    """
    if named is not None:
        return Path(named)
    root = Path(__file__).resolve().parent.parent
    places = [root / "data"] if (root / "setup.cfg").is_file() else []
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    bases = [Path(sysconfig.get_path("data", scheme)) for scheme in schemes]
    places += [base / "share" / "strata" for base in (*bases, root)]  # the last: pip install --target
    for place in places:
        if place.is_dir():
            return place
    raise StrataError(f"no data files: they belong in {places[0]}; STRATA_DATA names another folder")


def _base(environ: Mapping[str, str], xdg: str, home: str, windows: str) -> str:
    wanted = environ.get(windows if sys.platform == "win32" else xdg, "")
    # The XDG rules: an empty or relative value counts as not set.
    return wanted if os.path.isabs(wanted) else os.path.join(os.path.expanduser("~"), home)
