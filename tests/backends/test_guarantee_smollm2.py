"""The guarantee on the bundled model: one text per prompt and seed over everything that must not change it (`make guarantee`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.config import Request, RoundTrace
from backends.decode.slop import DEFAULT
from backends.decode.window import PCum
from backends.engine import Engine
from backends.tables import MAX_WINDOW
from tests.backends.guarantee import after_prefill, bits, opened, pairwise, poison

pytestmark = pytest.mark.guarantee

DATA = Path(__file__).parents[2] / "data"
DRAFTER, VOCABULARY = DATA / "drafters" / "smollm2-135m-instruct-mtp-q8_0.gguf", DATA / "draft-vocab" / "smollm2-en.bin"

PROMPT = """Summarise the following notes for a newcomer, then list three questions that they leave open.

The lighthouse was built in 1867 from granite cut on the far side of the bay. Its lamp burned colza oil until 1901, then paraffin, then
electricity; the lens, which floats on a bath of mercury, has been turned by hand on eleven nights since. Keepers wrote the weather down
four times a day, and their books are whole but for one winter. In 1953 the sea took the boathouse. The last keeper left in 1984, and
the light has been watched from the harbour office ever since, with a log that nobody reads: `def read(log): return [x for x in log]`.

Write a vivid advertisement for visitors: a testament to a rich tapestry, vibrant, unforgettable."""
REQUESTS = {
    "greedy": Request(prompt=PROMPT, max_new=48, ignore_eos=True),
    "sampled": Request(prompt=PROMPT, max_new=48, ignore_eos=True, temperature=0.8, seed=77),
}
SLOP = {"off": None, "default": DEFAULT}
LISTS = {"slop_lexicon": str(DATA / "slop_lexicon.txt"), "slop_openers": str(DATA / "slop_openers.txt")}
P_CUMS = (None, PCum(0.3), PCum(0.75), PCum(0.9, 0.5, 64, 128))
ARMS = pairwise(
    {
        "spec": range(9),
        "drafts": ("drafter", "none", "oracle", "corrupted"),
        "p_cum": P_CUMS,
        "prefill_chunk": (1, 7, 64, 512),
        "min_p": (0.0, 0.5, 0.9),
        "vocabulary": (True, False),
        "work_groups": (1, 2),
        "instructions": ("auto", "portable"),
        "launch": ("queue", "buffer"),
        "slop": tuple(SLOP),
        "mtp_slop": (False, True),
    }
)
assert len(ARMS) <= 60


@pytest.fixture(scope="module")
def engine(smollm2_path: Path, cache_dir: str) -> Iterator[Engine]:
    with opened(smollm2_path, cache_dir, **LISTS) as engine:
        yield engine


@pytest.fixture(scope="module")
def texts(engine: Engine) -> dict[tuple[str, str], tuple[int, ...]]:
    """By request and slop setting."""
    return {(name, slop): generated(engine, replace(request, slop=SLOP[slop])) for name, request in REQUESTS.items() for slop in SLOP}


@pytest.fixture(scope="module")
def ids(engine: Engine) -> list[int]:
    return engine.tokenize(REQUESTS["greedy"])


@pytest.fixture(scope="module")
def one_by_one(engine: Engine, ids: list[int]) -> np.ndarray:
    return bits(engine.session().logits(ids, 0, 1))


def generated(engine: Engine, request: Request) -> tuple[int, ...]:
    session = engine.session()
    for _ in session.generate(request):
        pass
    assert session.result is not None
    return session.result.token_ids


def test_the_requests_tell_seeds_and_slop_settings_apart(engine: Engine, texts: dict[tuple[str, str], tuple[int, ...]]) -> None:
    other = generated(engine, Request(prompt=PROMPT, max_new=48, ignore_eos=True, temperature=0.8, seed=78))
    assert len({*texts.values(), other}) == 5


@pytest.fixture(scope="module")
def seen() -> dict[int, set[int]]:
    """Sizes of the windows that were run, by --spec."""
    return {}


@pytest.mark.parametrize("arm", ARMS, ids=["-".join(str(value) for value in arm.values()) for arm in ARMS])
def test_one_text(
    smollm2_path: Path,
    cache_dir: str,
    texts: dict[tuple[str, str], tuple[int, ...]],
    one_by_one: np.ndarray,
    ids: list[int],
    seen: dict[int, set[int]],
    arm: dict[str, Any],
) -> None:
    spec, drafts, slop = arm["spec"], arm["drafts"], arm["slop"]
    settings = {name: arm[name] for name in ("prefill_chunk", "work_groups", "instructions", "launch", "mtp_slop")} | {"slop": SLOP[slop], **LISTS}
    speculation = {"spec": spec, "spec_min_p": arm["min_p"], "spec_p_cum": arm["p_cum"], "mtp": False if drafts in ("none", "oracle") else None}
    if speculation["mtp"] is None:
        speculation |= {"mtp_model": str(DRAFTER), "draft_vocab": str(VOCABULARY) if arm["vocabulary"] else None}
    with opened(smollm2_path, cache_dir, **settings, **speculation) as engine:
        assert np.array_equal(after_prefill(engine, ids, 3), one_by_one[-3:])
        for name, request in REQUESTS.items():
            session, trace = engine.session(), list[RoundTrace]()
            change = {"oracle": texts[name, slop]} if drafts == "oracle" and spec > 1 else {"corrupt": 3} if drafts == "corrupted" else {}
            for _ in session.generate(replace(request, **change), trace=trace.append):
                pass
            assert session.result is not None and session.result.token_ids == texts[name, slop], name
            counted = session.result.speculation
            seen.setdefault(spec, set()).update(entry.rows for entry in trace)
            if spec > 1 and drafts != "none":
                assert counted.drafted > 0  # else the arm would prove nothing
            else:
                assert counted.drafted == 0
            if spec > 1 and drafts == "oracle":
                assert counted.accepted == counted.drafted
            if spec > 1 and drafts == "corrupted" and counted.drafted > 3:
                assert counted.accepted < counted.drafted


def test_every_window_size_was_run(seen: dict[int, set[int]]) -> None:
    """By the arms above, which must have run before."""
    assert seen == {spec: set(range(1, max(1, spec) + 1)) for spec in range(9)}


def test_a_cold_start_gives_the_same_text(smollm2_path: Path, tmp_path: Path, texts: dict[tuple[str, str], tuple[int, ...]]) -> None:
    """Without a cache the first rows run one by one while the programs for more are being compiled."""
    from backends.config import DecodeConfig

    with Engine.open(smollm2_path, DecodeConfig(backend="opencl", cache_dir=str(tmp_path))) as engine:
        assert generated(engine, REQUESTS["greedy"]) == texts["greedy", "off"]
        engine.wait_wide()
        assert generated(engine, REQUESTS["greedy"]) == texts["greedy", "off"]


@pytest.mark.parametrize("window", range(2, MAX_WINDOW + 1))
@pytest.mark.parametrize("instructions", ["auto", "portable"])
def test_windows(smollm2_path: Path, cache_dir: str, ids: list[int], one_by_one: np.ndarray, window: int, instructions: str) -> None:
    with opened(smollm2_path, cache_dir, instructions=instructions) as engine:
        assert np.array_equal(bits(engine.session().logits(ids, 0, window)), one_by_one)


def test_later_cells_are_never_read(engine: Engine, ids: list[int], one_by_one: np.ndarray) -> None:
    for at in (63, 64, 130):
        assert np.array_equal(poison(engine, ids, at, float("nan")), one_by_one[at:]), at


@pytest.mark.parametrize("name", list(REQUESTS))
def test_repeats(engine: Engine, texts: dict[tuple[str, str], tuple[int, ...]], name: str) -> None:
    for _ in range(3):
        assert generated(engine, REQUESTS[name]) == texts[name, "off"]
