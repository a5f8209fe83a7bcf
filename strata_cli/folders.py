"""Where the platform keeps a user's settings and caches."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping


def config_file(environ: Mapping[str, str]) -> str:
    """The user config's path, whether or not there is one."""
    return os.path.join(_base(environ, "XDG_CONFIG_HOME", ".config", "APPDATA"), "strata", "config.toml")


def cache_folder(environ: Mapping[str, str]) -> str:
    """The default folder for compiled programs."""
    folder = os.path.join(_base(environ, "XDG_CACHE_HOME", ".cache", "LOCALAPPDATA"), "strata")
    # Windows has one folder for all that is local to a machine, so a cache says there what it is.
    return os.path.join(folder, "cache") if sys.platform == "win32" else folder


def _base(environ: Mapping[str, str], xdg: str, home: str, windows: str) -> str:
    wanted = environ.get(windows if sys.platform == "win32" else xdg, "")
    # The XDG rules: an empty or relative value counts as not set.
    return wanted if os.path.isabs(wanted) else os.path.join(os.path.expanduser("~"), home)
