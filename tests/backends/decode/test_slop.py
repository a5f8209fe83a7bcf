"""The slop policy's knobs, state and step: the table of transitions is the contract."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.decode import slop_tables
from backends.decode.slop import DEFAULT, OFF, Knobs, State, fresh, in_force, step
from backends.decode.slop_tables import BULLET, COUNT_MAX, DASH, FENCED, HEADING, NEWLINE, PROSE, THINK, THINK_OPEN, TOOL, VISIBLE, VISIBLE_MAX
from backends.errors import BadValue

TABLE = Path(__file__).parent.parent.parent / "golden" / "slop_step_table.tsv"
HEADER = Path(slop_tables.__file__).parent.parent / "kernels" / "slop_tables.h"
REGIONS = {"prose": PROSE, "fence": FENCED, "think": THINK, "tool": TOOL}
FLAGS = {"L": slop_tables.LINE_START, "C": slop_tables.CLAUSE_START, "b": slop_tables.BULLET_LINE, "o": slop_tables.BOLD_OPEN, "-": 0}
STATES = st.binary(min_size=12, max_size=12).map(State.from_bytes)
MASKS = st.integers(0, 2**32 - 1)


def parse_state(text: str) -> State:
    """A state as the table writes it."""
    region, flags, *counts = text.split()
    found = {item[0]: int(item[1:]) for item in counts}
    return State(REGIONS[region], sum(FLAGS[letter] for letter in flags), *(found[name] for name in "drhBv"))


def parse_mask(text: str) -> int:
    return 0 if text == "0" else sum(getattr(slop_tables, name) for name in text.split())


LINES = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(("before", "token", "mask", "after"), LINES)
def test_every_line_of_the_table(before: str, token: str, mask: str, after: str) -> None:
    assert step(parse_state(before), parse_mask(mask)) == parse_state(after)


def test_the_table_is_whole() -> None:
    assert len(LINES) == 68
    assert parse_state("prose LC d0 r0 h0 B0 v0") == fresh(False)
    # Within a block each line goes on where the one before it ended.
    blocks = TABLE.read_text(encoding="utf-8").split("# -- ")[1:]
    for block in blocks:
        rows = [line.split("\t") for line in block.splitlines()[1:]]
        assert [row[3] for row in rows[:-1]] == [row[0] for row in rows[1:]]


@given(STATES, MASKS)
def test_step_is_total_and_stays_in_its_twelve_bytes(state: State, mask: int) -> None:
    after = step(state, mask)
    assert State.from_bytes(after.to_bytes()) == after
    assert len(after.to_bytes()) == 12
    assert after.to_bytes()[6:8] == b"\0\0"
    assert step(state, mask) == after
    assert after.words == tuple(int.from_bytes(after.to_bytes()[at : at + 4], "little") for at in (0, 4, 8))


@given(STATES, MASKS)
def test_counts_stay_outside_prose(state: State, mask: int) -> None:
    after = step(state, mask)
    if not state.region == after.region == PROSE:
        assert (after.dashes, after.bullet_run, after.headings, after.bolds) == (state.dashes, state.bullet_run, state.headings, state.bolds)
    if state.region == THINK:
        assert after.visible == state.visible


def test_counts_saturate() -> None:
    full = State(PROSE, slop_tables.LINE_START, COUNT_MAX, COUNT_MAX, COUNT_MAX, COUNT_MAX, VISIBLE_MAX)
    after = step(full, DASH | HEADING | BULLET | slop_tables.BOLD | VISIBLE | NEWLINE)
    assert (after.dashes, after.bullet_run, after.headings, after.bolds, after.visible) == (COUNT_MAX, COUNT_MAX, COUNT_MAX, COUNT_MAX, VISIBLE_MAX)


def test_regions_end_with_their_own_markers_only() -> None:
    for region in (FENCED, TOOL):
        assert step(State(region), THINK_OPEN | VISIBLE).region == region
        assert step(State(region), slop_tables.THINK_CLOSE | VISIBLE).region == region
    assert step(State(THINK), slop_tables.TOOL_OPEN | VISIBLE).region == THINK
    assert step(State(THINK), slop_tables.FENCE | VISIBLE).region == THINK


def test_fresh() -> None:
    assert fresh(False) == State()
    assert fresh(True) == State(region=THINK)
    assert State().to_bytes() == bytes([0, 3, *[0] * 10])


def test_the_kernels_numbers_are_the_hosts() -> None:
    defined = re.findall(r"^#define SLOP_(\w+) (0x[0-9a-f]+|\d+)\b", HEADER.read_text(encoding="utf-8"), re.MULTILINE)
    host = {name: value for name, value in vars(slop_tables).items() if name.isupper()}
    del host["VISIBLE_MAX"]  # the largest 32-bit word, which needs no name there
    assert {name: int(value, 0) for name, value in defined} == host


def test_knobs() -> None:
    assert not OFF.active and DEFAULT.active
    assert str(OFF) == "off"
    assert str(DEFAULT) == "dash=1.5,lexical=2,structure=0.5,opener=2"
    assert Knobs(dash=1e-50) == Knobs(dash=1e-39) == OFF  # 0, or perhaps 0, as a device's float
    assert Knobs(dash=1e-30).active
    assert Knobs(dash=-0.0) == OFF and str(Knobs(dash=20)) == "dash=20"
    assert in_force(None, None) is None and in_force(DEFAULT, OFF) is None and in_force(OFF, None) is None
    assert in_force(DEFAULT, None) == DEFAULT and in_force(None, Knobs(1)) == Knobs(1)


@pytest.mark.parametrize("value", [-1, 20.5, float("nan"), float("inf"), True, "1", None])
def test_a_knob_that_is_not_allowed(value: object) -> None:
    with pytest.raises(BadValue, match=r"slop lexical: .* is not allowed; allowed: a number from 0 to 20"):
        Knobs(lexical=value)  # type: ignore[arg-type]
