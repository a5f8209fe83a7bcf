"""Memory that runs out, before loading and on the way, and devices that are lost: one line each, which says what would help."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backends.cuda
import backends.memory
import backends.numpy_device
import backends.opencl
from backends.config import DecodeConfig, Request
from backends.decode.slop import Knobs
from backends.device import Device, Memory
from backends.engine import Engine
from backends.errors import DeviceError, OutOfMemory
from backends.memory import Need, host_memory
from backends.numpy_device import NumpyDevice
from backends.opencl import OpenCLDevice
from backends.sequence import Rules
from strata_cli.main import main
from tests.conftest import skip_or_fail
from tests.cuda_emulator.compiler import system_compiler
from tests.cuda_emulator.fake_cupy import FakeCupy
from tests.tiny import write_tiny_llama

MIB = 1 << 20
LAYERS, EMBD, KV_HEADS, HEAD, FF, VOCAB, CTX = 2, 64, 2, 16, 96, 96, 1 << 16
# Float matrices keep their size, since all rows are multiples of 16: q and output, k and v, gate, up and down; then the norms.
WEIGHTS = 4 * (LAYERS * (2 * EMBD * EMBD + 2 * EMBD * KV_HEADS * HEAD + 3 * EMBD * FF + 2 * EMBD) + VOCAB * EMBD + EMBD)
STATE = LAYERS * 2 * KV_HEADS * HEAD * 2 * CTX + 2 * 4 * HEAD * CTX  # halves of all cells, RoPE tables; beside them a few small buffers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("memory") / "tiny.gguf", ctx=CTX, n_vocab=VOCAB)


def use_cuda(monkeypatch: pytest.MonkeyPatch, cache_dir: str, **settings: Any) -> FakeCupy:
    """Lets everything find an emulated device."""
    if system_compiler() is None:
        skip_or_fail("the emulator needs a C++ compiler")
    fake = FakeCupy(cache=Path(cache_dir), **settings)
    monkeypatch.setattr(backends.cuda, "load_cupy", lambda: fake)
    return fake


def limit(monkeypatch: pytest.MonkeyPatch, backend: str, cache_dir: str, nbytes: int) -> None:
    """Gives a backend's device so much memory."""
    if backend == "cuda":
        use_cuda(monkeypatch, cache_dir, memory=nbytes)
    else:
        kind = OpenCLDevice if backend == "opencl" else NumpyDevice
        monkeypatch.setattr(kind, "memory", lambda self: Memory(nbytes, nbytes))


NAMES = {"opencl": "cpu", "numpy": "numpy", "cuda": "cuda/0"}


def test_the_need_is_what_is_allocated(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    alloc = NumpyDevice.alloc

    def counted(self: NumpyDevice, nbytes: int) -> Any:
        asked.append(max(nbytes, 64))
        return alloc(self, nbytes)

    monkeypatch.setattr(NumpyDevice, "alloc", counted)
    with Engine.open(model, DecodeConfig(backend="numpy")) as engine:
        need = engine.need(CTX)
        assert (need.weights, need.ctx) == (WEIGHTS, CTX)
        assert STATE <= need.state < 1.1 * STATE
        asked.clear()
        engine.model.load(engine.device, lambda fraction: None)
        assert sum(asked) == need.weights
        asked.clear()
        engine.session().sequence(CTX)
        assert sum(asked) == need.state + need.work + 64 * (sum(asked) > need.state + need.work)  # two END ids are another line


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("subset", [False, True])
def test_the_need_counts_what_the_slop_policy_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subset: bool, seen: bool) -> None:
    """Class masks of all ids, of the draft vocabulary's where drafts see them, and the parts of sums: just what a request then allocates."""
    model, vocabulary = write_tiny_llama(tmp_path / "tiny.gguf", nextn=True), tmp_path / "some.bin"
    vocabulary.write_bytes(np.arange(3, 60, dtype="<i4").tobytes())
    config = DecodeConfig(backend="numpy", mtp_slop=seen, draft_vocab=str(vocabulary) if subset else None)
    with Engine.open(model, config) as without, Engine.open(model, replace(config, slop=Knobs(dash=1.0))) as engine:
        sequence, asked = engine.session().sequence(64), list[int]()
        alloc = NumpyDevice.alloc
        monkeypatch.setattr(NumpyDevice, "alloc", lambda self, nbytes: (asked.append(max(nbytes, 64)), alloc(self, nbytes))[1])
        sequence.start(Rules(64, window=4, slop=engine.config.slop, slop_drafts=seen))
        assert len(asked) == 2 + (subset and seen)
        assert sum(asked) == engine.need(64).total - without.need(64).total


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_weights_of_every_type(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    alloc = NumpyDevice.alloc
    path = write_tiny_llama(tmp_path / "tiny.gguf", weight_type=kind, n_vocab=103, tied=False)
    with Engine.open(path, DecodeConfig(backend="numpy")) as engine:
        monkeypatch.setattr(NumpyDevice, "alloc", lambda self, nbytes: (asked.append(nbytes), alloc(self, nbytes))[1])
        engine.model.load(engine.device, lambda fraction: None)
        assert sum(asked) == engine.model.weight_bytes()


@pytest.mark.parametrize("backend", list(NAMES))
def test_no_room_is_known_before_loading(model: Path, cache_dir: str, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    has = 12 * MIB
    limit(monkeypatch, backend, cache_dir, has)
    stages: list[str] = []
    with pytest.raises(OutOfMemory) as raised:
        Engine.open(model, DecodeConfig(backend=backend, ctx=CTX, cache_dir=cache_dir), lambda stage, _: stages.append(stage))
    assert stages == []
    line = str(raised.value)
    pattern = (
        rf"device {NAMES[backend]}: no room: weights {-(-WEIGHTS // MIB)} MiB, KV cache for --ctx {CTX}: (\d+) MiB, work buffers \d+ MiB: "
        r"(\d+) MiB in all; it has 12 MiB, 12 MiB of them free; --ctx (\d+) fits"
    )
    found = re.fullmatch(pattern, line)
    assert found, line
    assert int(found[1]) * MIB >= STATE and int(found[2]) * MIB >= WEIGHTS + STATE
    fits = int(found[3])
    assert 0 < fits < CTX and fits % 64 == 0
    with Engine.open(model, DecodeConfig(backend=backend, ctx=fits, cache_dir=cache_dir)) as engine:
        for need, ok in ((engine.need(fits), True), (engine.need(fits + fits // 10), False)):
            assert (need.total <= has) == ok


def test_a_model_that_is_too_large(model: Path, monkeypatch: pytest.MonkeyPatch, cache_dir: str) -> None:
    limit(monkeypatch, "numpy", cache_dir, WEIGHTS // 2)
    with pytest.raises(OutOfMemory, match=r"; a smaller model or a smaller quantisation needs less$"):
        Engine.open(model, DecodeConfig(backend="numpy", ctx=64))


@pytest.mark.parametrize("backend", list(NAMES))
def test_a_context_that_grows_too_large(model: Path, cache_dir: str, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    limit(monkeypatch, backend, cache_dir, 12 * MIB)
    with Engine.open(model, DecodeConfig(backend=backend, cache_dir=cache_dir)) as engine:
        session = engine.session()
        with pytest.raises(OutOfMemory, match=rf"KV cache for --ctx {CTX}: \d+ MiB.*--ctx \d+ fits$"):
            session.generate(Request(token_ids=(5, 9), max_new=-1))
        assert len(list(session.generate(Request(token_ids=(5, 9), max_new=2, ignore_eos=True)))) == 2


def test_the_command_line_says_it_in_one_line(model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    limit(monkeypatch, "numpy", "", 12 * MIB)
    assert main(["generate", "--raw", "-m", str(model), "--backend", "numpy", "--ctx", str(CTX), "hi"]) == 1
    out, err = capfd.readouterr()
    (line,) = [line for line in err.splitlines() if "error" in line]
    assert out == "" and line.startswith("strata: error: device numpy: no room: weights 1 MiB, KV cache for --ctx")


def refusing(monkeypatch: pytest.MonkeyPatch, backend: str, cache_dir: str, after: int) -> Callable[[], None]:
    """A driver that promises memory and refuses it after `after` bytes; returns what starts the count."""
    given = [-(1 << 60)]

    def count(nbytes: int) -> None:
        given[0] += nbytes
        if given[0] > after:
            raise MemoryError("made to fail")

    if backend == "cuda":
        fake = use_cuda(monkeypatch, cache_dir)
        alloc = fake.cuda.alloc
        fake.cuda.alloc = lambda nbytes: (count(nbytes), alloc(nbytes))[1]
    elif backend == "opencl":
        memory = backends.opencl._host_memory
        monkeypatch.setattr(backends.opencl, "_host_memory", lambda nbytes: (count(nbytes), memory(nbytes))[1])
    else:
        buffer = backends.numpy_device.NumpyBuffer
        monkeypatch.setattr(backends.numpy_device, "NumpyBuffer", lambda nbytes: (count(nbytes), buffer(nbytes))[1])

    def start() -> None:
        given[0] = 0

    return start


@pytest.mark.parametrize("backend", list(NAMES))
def test_a_driver_that_refuses_weights(model: Path, cache_dir: str, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    refusing(monkeypatch, backend, cache_dir, WEIGHTS // 2)()
    with pytest.raises(OutOfMemory) as raised:
        Engine.open(model, DecodeConfig(backend=backend, ctx=128, cache_dir=cache_dir))
    line = str(raised.value)
    assert re.match(rf"device {NAMES[backend]}: no room for \d+ MiB more", line)
    assert ": weights 1 MiB, KV cache for --ctx 128: 1 MiB, work buffers " in line and "\n" not in line


@pytest.mark.parametrize("backend", list(NAMES))
def test_a_driver_that_refuses_cells(model: Path, cache_dir: str, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    start = refusing(monkeypatch, backend, cache_dir, 4 * MIB)
    with Engine.open(model, DecodeConfig(backend=backend, cache_dir=cache_dir)) as engine:
        engine.wait_wide()
        start()
        with pytest.raises(OutOfMemory, match=rf"^device {NAMES[backend]}: no room for .* KV cache for --ctx {CTX}: \d+ MiB.*ctx"):
            engine.session().sequence(CTX)


def test_main_memory_that_runs_out_while_repacking(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("backends.model.matrix.repack", fail)
    with pytest.raises(OutOfMemory, match=r"^main memory ran out: weights 1 MiB, .* in all; a smaller --ctx, or a smaller model"):
        Engine.open(model, DecodeConfig(backend="numpy"))


def test_more_than_the_driver_gives_at_once(cache_dir: str) -> None:
    from backends.devices import open_device

    device = open_device(DecodeConfig(backend="opencl", cache_dir=cache_dir), [])
    with pytest.raises(OutOfMemory, match=r"device cpu: no room for \d+ MiB more .*, its driver gives at most \d+ MiB at once; a smaller --ctx"):
        device.alloc(1 << 60)


def test_advice() -> None:
    need = Need(weights=600 * MIB, state=320 * MIB, work=80 * MIB, ctx=3200)
    assert str(need) == "weights 600 MiB, KV cache for --ctx 3200: 320 MiB, work buffers 80 MiB: 1000 MiB in all"
    assert need.remedy(840 * MIB) == "--ctx 1600 fits"
    assert need.remedy(680 * MIB) == "a smaller model or a smaller quantisation needs less"
    assert need.remedy(2000 * MIB) == "a smaller --ctx needs less"
    assert "--ctx" in need.remedy(None) and "model" in need.remedy(None)


def test_main_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal: 4000 kB\nMemFree: 10 kB\nMemAvailable:    3000 kB\nSwapTotal: 500 kB\nSwapFree: 20 kB\nHugePages_Total: 0\n")
    monkeypatch.setattr(backends.memory, "MEMINFO", file)
    assert host_memory() == Memory(3020 << 10, 4500 << 10)
    for text in ("", "MemTotal: 4000 kB\n", "MemTotal\n"):
        file.write_text(text)
        assert host_memory() is None
    monkeypatch.setattr(backends.memory, "MEMINFO", tmp_path / "none")
    assert host_memory() is None


def lose(monkeypatch: pytest.MonkeyPatch, backend: str, fake: FakeCupy | None, device: Device) -> None:
    """From now on, nothing comes back from the device."""
    if fake is not None:
        fake.faults.add("synchronize")
        return
    import pyopencl as cl

    # A real error of the driver: only it can make one.
    with pytest.raises(cl.Error) as raised:
        cl.enqueue_copy(device._queue, np.zeros(64, np.uint8), device.alloc(64).handle, src_offset=1 << 40)  # type: ignore[attr-defined]

    def fail(*args: Any, **kwargs: Any) -> None:
        raise raised.value

    monkeypatch.setattr(cl, "enqueue_copy", fail)


@pytest.mark.parametrize("backend", ["opencl", "cuda"])
def test_a_device_lost_on_the_way(
    model: Path, cache_dir: str, monkeypatch: pytest.MonkeyPatch, backend: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The text so far stays, the error names the device, the exit code is 1."""
    fake = use_cuda(monkeypatch, cache_dir) if backend == "cuda" else None
    generate, chunks = Engine.session, 5

    def session(engine: Engine) -> Any:
        made = generate(engine)
        whole = made.generate

        def cut(*args: Any) -> Any:
            for number, chunk in enumerate(whole(*args)):
                if number == chunks:
                    lose(monkeypatch, backend, fake, engine.device)
                yield chunk

        monkeypatch.setattr(made, "generate", cut)
        return made

    arguments = ["generate", "--raw", "-m", str(model), "--backend", backend, "-n", "40", "--ignore-eos", "--seed", "1", "ab"]
    assert main(arguments) == 0
    whole_text = capfd.readouterr().out
    monkeypatch.setattr(Engine, "session", session)
    assert main(arguments) == 1
    out, err = capfd.readouterr()
    assert len(out.strip()) > 1 and whole_text.startswith(out.rstrip("\n"))
    *_, statistics, error = err.splitlines()
    assert f"failed after {chunks + 1} tokens" in statistics
    assert error.startswith(f"strata: error: device {NAMES[backend]} failed: ") and "driver" in error


def test_a_launch_that_fails_names_the_device(cache_dir: str, monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    import pyopencl as cl

    with Engine.open(model, DecodeConfig(backend="opencl", launch="queue", cache_dir=cache_dir)) as engine:
        sequence = engine.session().sequence(64)
        replay = engine.on_device(sequence._replay, "round", 1)
        with pytest.raises(cl.Error) as raised:
            cl.enqueue_copy(engine.device._queue, np.zeros(64, np.uint8), engine.device.alloc(64).handle, src_offset=1 << 40)  # type: ignore[attr-defined]

        def fail(*args: Any) -> None:
            raise raised.value

        monkeypatch.setattr(replay, "_enqueue", fail)
        with pytest.raises(DeviceError, match=r"^device cpu failed: .*; if it goes on failing, the driver needs a restart$"):
            replay.run()
