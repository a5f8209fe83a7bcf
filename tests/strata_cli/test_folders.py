"""Where the data files are found."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from backends.errors import StrataError
from strata_cli import folders

ROOT = Path(__file__).parent.parent.parent


def test_a_checkout_has_its_own() -> None:
    assert folders.data_folder(None) == ROOT / "data"
    assert folders.data_folder("elsewhere") == Path("elsewhere")


def test_an_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "__file__", str(tmp_path / "site-packages" / "strata_cli" / "folders.py"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name, scheme: str(tmp_path / f"{name}-{scheme}"))
    with pytest.raises(StrataError, match="no data files: they belong in .*STRATA_DATA names another folder"):
        folders.data_folder(None)
    for base in (
        tmp_path / "site-packages",
        tmp_path / f"data-{sysconfig.get_preferred_scheme('user')}",
        tmp_path / f"data-{sysconfig.get_default_scheme()}",
    ):
        (base / "share" / "strata").mkdir(parents=True)
        assert folders.data_folder(None) == base / "share" / "strata"
