"""`strata env`."""

from __future__ import annotations

import json
import re

from strata_cli.environment import VARIABLES
from tests.strata_cli.conftest import Cli


def _rows(out: str) -> dict[str, list[str]]:
    return {cells[0]: cells[1:] for cells in (re.split(r"  +", line) for line in out.splitlines()[1:-1])}


def test_lists_every_variable(cli: Cli) -> None:
    outcome = cli("env")
    assert (outcome.code, outcome.err) == (0, "")
    rows = _rows(outcome.out)
    assert list(rows) == [variable.name for variable in VARIABLES]
    assert rows["STRATA_MAX_NEW"] == ["512", "default", "512", "-1 or an integer from 1 to 2147483647"]
    assert rows["STRATA_CACHE"][0].endswith("strata")
    assert outcome.out.splitlines()[-1].endswith("config.toml (none)")


def test_sources(cli: Cli) -> None:
    cli.config.write_text('ctx = 64\nstop = "x"\nkv = "f16"\n')
    rows = _rows(cli("env", env={"STRATA_KV": " f16 "}).out)
    assert rows["STRATA_CTX"][:2] == ["64", "user config"]
    assert rows["STRATA_STOP"][:2] == ['["x"]', "user config"]
    assert rows["STRATA_KV"][:2] == ["f16", "environment"]


def test_malformed_are_all_shown(cli: Cli) -> None:
    cli.config.write_text("ctx = 1\nmax-new = [2]\nseed = -1\n")
    outcome = cli("env", env={"STRATA_KV": "bad", "STRATA_SEED": "5", "STRATA_CTXX": "1"})
    assert outcome.code == 2
    rows = _rows(outcome.out)
    assert rows["STRATA_KV"][:2] == ["bad", "environment (malformed)"]
    assert rows["STRATA_CTX"][:2] == ["1", "user config (malformed)"]
    assert rows["STRATA_MAX_NEW"][:2] == ["[2]", "user config (malformed)"]
    assert rows["STRATA_SEED"][:2] == ["5", "environment"]
    warning, *errors = outcome.err.splitlines()
    assert warning == "strata: warning: STRATA_CTXX is no variable of strata; nearest: STRATA_CTX"
    assert len(errors) == 4
    assert "strata: error: STRATA_KV: 'bad' is not allowed; allowed: f16" in errors


def test_unreadable_config(cli: Cli) -> None:
    cli.config.write_text("= 1")
    outcome = cli("env")
    assert outcome.code == 2
    assert len(_rows(outcome.out)) == len(VARIABLES)
    assert "not TOML" in outcome.error


def test_json(cli: Cli) -> None:
    outcome = cli("env", "--json", env={"STRATA_MAX_NEW": "0", "STRATA_MAXNEW": "1"})
    assert outcome.code == 2
    found = json.loads(outcome.out)
    rows = {row["name"]: row for row in found["variables"]}
    assert rows["STRATA_MAX_NEW"] == {
        "name": "STRATA_MAX_NEW",
        "flag": "--max-new",
        "key": "max-new",
        "allowed": "-1 or an integer from 1 to 2147483647",
        "default": "512",
        "value": "0",
        "source": "environment",
        "malformed": True,
        "error": "STRATA_MAX_NEW: '0' is not allowed; allowed: -1 or an integer from 1 to 2147483647",
    }
    assert rows["STRATA_LAUNCH"]["flag"] is None
    assert found["unknown"] == {"STRATA_MAXNEW": "STRATA_MAX_NEW"}
    assert found["user_config"] == {"path": str(cli.config), "exists": False, "error": None}


def test_terminal_table(cli: Cli) -> None:
    out = cli("env", terminal=True, env={"COLUMNS": "120", "STRATA_DEVICE": "a\x1b[2Jb"}).out
    assert "STRATA_LOGIT_BIAS" in out
    assert "a␛[2Jb" in out
