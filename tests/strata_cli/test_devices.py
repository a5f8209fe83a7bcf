"""`strata devices`."""

from __future__ import annotations

import json

from tests.strata_cli.conftest import Cli


def test_text(cli: Cli) -> None:
    cli.missing = ["no GPU driver found: apt-get install some-driver"]
    outcome = cli("devices")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [
        "* cpu/0  opencl  Test CPU",
        "    driver: Test OpenCL",
        "    units: 2",
        "    memory: 8.0 GiB",
        "    fast dot: avx512-vnni",
        "    submissions per round: 1",
        "  numpy  numpy  NumPy reference",
        "    units: 1",
        "missing: no GPU driver found: apt-get install some-driver",
    ]


def test_json(cli: Cli) -> None:
    cli.missing = ["a hint"]
    found = json.loads(cli("devices", "--json").out)
    assert found["missing"] == ["a hint"]
    assert found["devices"][0] == {
        "name": "cpu/0",
        "backend": "opencl",
        "description": "Test CPU",
        "driver": "Test OpenCL",
        "units": 2,
        "memory": 8 * 2**30,
        "default": True,
        "details": {"fast dot": "avx512-vnni", "submissions per round": "1"},
    }


def test_none(cli: Cli) -> None:
    cli.devices = []
    assert cli("devices").out == "no device can run a model\n"
    assert json.loads(cli("devices", "--json").out) == {"devices": [], "missing": []}
