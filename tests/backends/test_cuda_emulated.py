"""CUDA text and host side on the emulator (tests/cuda_emulator): the same bits as the OpenCL CPU runtime in GPU shape, and clear errors."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backends.cuda
import backends.cuda_driver
import backends.model.attention
from backends.config import DecodeConfig, Request
from backends.cuda import BASE_DOT, BYTE_DOT, COMPILES_FOR, CudaDevice, cuda_devices, load_cupy
from backends.device import KernelSpec, Launch
from backends.devices import list_devices, missing, open_device
from backends.engine import Engine
from backends.errors import BadValue, DeviceError
from backends.kernels.source import kernel_source
from backends.plan import SAMPLER
from backends.tables import BLOCK
from tests.backends.test_probe import dot_words
from tests.conftest import skip_or_fail
from tests.cuda_emulator.compiler import system_compiler
from tests.cuda_emulator.fake_cupy import CUDARuntimeError, FakeCupy, Module, Stream
from tests.tiny import write_tiny_llama


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    if system_compiler() is None:
        skip_or_fail("the emulator needs a C++ compiler")


MODELS = {
    "q4_1": {"weight_type": "Q4_1", "embd_type": "Q8_0"},
    "q4_0 head 32": {"weight_type": "Q4_0", "n_head": 2, "n_head_kv": 1, "head_dim": 32},
    "f32 head 64": {"weight_type": "F32", "n_embd": 128, "n_head": 2, "n_head_kv": 1, "head_dim": 64},
}
CTX = 160
IDS = [int(i) for i in np.random.default_rng(5).integers(3, 96, 75)]  # over a KV block's edge


@pytest.fixture(scope="module", autouse=True)
def chunks() -> Iterator[None]:
    """Chunks of attention so short that IDS are several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends.model.attention, "CHUNK", BLOCK)
        yield


def use(monkeypatch: pytest.MonkeyPatch, cupy: FakeCupy) -> FakeCupy:
    """Lets everything find this CuPy."""
    monkeypatch.setattr(backends.cuda, "load_cupy", lambda: cupy)
    return cupy


def device_on(cupy: FakeCupy, instructions: str = "auto", index: int = 0) -> CudaDevice:
    name, properties = cuda_devices(cupy)[index]
    return CudaDevice(cupy, name, properties, instructions)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, cache_dir: str) -> FakeCupy:
    return use(monkeypatch, FakeCupy(cache=Path(cache_dir)))


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("emulated") / "tiny.gguf", ctx=CTX, seed=6, **MODELS[request.param])


@pytest.fixture
def engine(model: Path, fake: FakeCupy) -> Iterator[Engine]:
    with Engine.open(model, DecodeConfig(backend="cuda")) as engine:
        engine.wait_wide()
        yield engine


def generated(engine: Engine, **settings: object) -> tuple[int, ...]:
    session = engine.session()
    for _ in session.generate(Request(token_ids=tuple(IDS[:20]), max_new=24, ignore_eos=True, **settings)):  # type: ignore[arg-type]
        pass
    assert session.result is not None
    return session.result.token_ids


def test_the_same_bits_as_opencl_in_gpu_shape(engine: Engine, model: Path, fake: FakeCupy, cache_dir: str) -> None:
    found = engine.session().logits(IDS)
    assert np.array_equal(found.view(np.int32), engine.session().logits(IDS, chunk=1).view(np.int32))
    assert fake.graphs > 0
    sequence = engine.session().sequence(CTX)
    sequence.prefill(IDS[:-3])
    assert np.array_equal(found[-3:].view(np.int32), sequence.logits(IDS[-3:], len(IDS) - 3).view(np.int32))
    with Engine.open(model, DecodeConfig(backend="opencl", kernel_shape="gpu", cache_dir=cache_dir)) as opencl:
        opencl.wait_wide()
        assert np.array_equal(found.view(np.int32), opencl.session().logits(IDS).view(np.int32))
        for settings in ({}, {"temperature": 0.9, "seed": 3}, {"logit_bias": {7: 2.5}}):
            assert generated(engine, **settings) == generated(opencl, **settings)
    with Engine.open(model, DecodeConfig(backend="numpy")) as numpy:
        reference = numpy.session().logits(IDS)
    assert np.abs(found - reference).max() < 0.05 * np.abs(reference).max()


@pytest.mark.parametrize(
    "arm",
    [{"order": 1}, {"sanitize": True}, {"capabilities": ((6, 0),)}, {"is_hip": True}],
    ids=["threads and blocks in reverse", "checks of bounds", "no byte dot product", "HIP's options and queue"],
)
def test_what_changes_no_bit(engine: Engine, model: Path, cache_dir: str, arm: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = engine.session().logits(IDS)
    other = use(monkeypatch, FakeCupy(cache=Path(cache_dir), **arm))  # type: ignore[arg-type]
    with Engine.open(model, DecodeConfig(backend="hip" if other.is_hip else "cuda")) as changed:
        changed.wait_wide()
        assert np.array_equal(expected.view(np.int32), changed.session().logits(IDS).view(np.int32))
    assert (other.graphs == 0) == other.is_hip


def test_on_hip_graphs_are_only_made_where_asked_for() -> None:
    device = device_on(FakeCupy(is_hip=True))
    assert [device.record([], style).kind for style in ("auto", "queue", "buffer")] == ["queue", "queue", "CUDA graph"]


def test_half_conversion_is_exact(cache_dir: str) -> None:
    """All halves to float; floats around every rounding case to half. NaNs stay NaNs."""
    text = kernel_source(["lanes.h"], "cuda") + (
        "KERNEL void widen(const half *in, float *out, int n) { for (int i = local_id(); i < n; i += GROUP) out[i] = load_half(i, in); }\n"
        "KERNEL void narrow(const float *in, half *out, int n) { for (int i = local_id(); i < n; i += GROUP) store_half(in[i], i, out); }\n"
    )
    fake = FakeCupy(cache=Path(cache_dir))
    module = Module(fake)
    module.load(fake.cuda.nvrtc._library(text, ["-DGROUP=64", "-DHALF_BY_INTEGERS"]))
    stream = Stream(fake, True)

    def run(name: str, array: np.ndarray, out: np.ndarray) -> np.ndarray:
        module.get_function(name)((1,), (64,), (np.uint64(array.ctypes.data), np.uint64(out.ctypes.data), np.int32(array.size)), 0, stream)
        stream.synchronize()
        return out

    halves = np.arange(65536, dtype=np.uint16)
    expected = halves.view(np.float16).astype(np.float32)
    widened = run("widen", halves, np.empty(65536, np.float32))
    number = ~np.isnan(expected)
    assert np.array_equal(widened.view(np.int32)[number], expected.view(np.int32)[number])
    assert np.isnan(widened[~number]).all()
    # Each half, the middles between neighbours, and a last place to both sides of those; float subnormals; random bits.
    finite = np.sort(np.unique(expected[np.isfinite(expected)]))
    points = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2, [65519.996, 65520.0, 65536.0, 1e-45, 1e-39]]).astype(np.float32)
    points = np.concatenate([points, -points])
    random = np.random.default_rng(0).integers(0, 2**32, 200_000, np.uint32).view(np.float32)
    values = np.concatenate([points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf)), random])
    values = np.concatenate([values, np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)])
    narrowed = run("narrow", values, np.empty(values.size, np.uint16))
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float16)
    number = ~np.isnan(values)
    assert np.array_equal(narrowed[number], wanted.view(np.uint16)[number])
    assert np.isnan(narrowed.view(np.float16)[~number]).all()


@pytest.mark.parametrize(
    ("dot", "instruction"), [(BASE_DOT, ""), (BYTE_DOT, ""), (BYTE_DOT, "SDOT4=emulated_sdot4"), (BYTE_DOT, "SUDOT4=emulated_sudot4")]
)
def test_the_byte_dot_product_is_exact(dot: int, instruction: str, cache_dir: str) -> None:
    """Every form of it, on every pair of bytes at every place and on random words."""
    text = kernel_source(["lanes.h", "dot.h"], "cuda") + (
        "KERNEL void dots(int *sum, const uint *w, const uint *x, int n) {\n"
        "for (int i = local_id(); i < n; i += GROUP) sum[i] = DOT4(sum[i], w[i], x[i]); }\n"
        "KERNEL void nibbles(int *sum, const uint *w, const uint *x, int n) {\n"
        "for (int i = local_id(); i < n; i += GROUP) sum[i] = DOT4(sum[i], w[i] & 0x0f0f0f0fu, x[i]); }\n"
    )
    w, x, sums = dot_words()
    fake = FakeCupy(cache=Path(cache_dir))
    module, stream = Module(fake), Stream(fake, True)
    module.load(fake.cuda.nvrtc._library(text, ["-DGROUP=64", f"-DDOT={dot}", *([f"-D{instruction}"] if instruction else [])]))
    for name, mask in (("dots", 255), ("nibbles", 15)):
        out = sums.copy()
        module.get_function(name)((1,), (64,), (*(np.uint64(a.ctypes.data) for a in (out, w, x)), np.int32(out.size)), 0, stream)
        stream.synchronize()
        products = (w.view(np.uint8) & mask).astype(np.int32) * x.view(np.int8)
        assert np.array_equal(out, sums + products.reshape(-1, 4).sum(1, dtype=np.int32))


def test_a_barrier_that_not_all_threads_reach_is_found(cache_dir: str) -> None:
    text = kernel_source(["lanes.h"], "cuda") + "KERNEL void apart(int n) { if (local_id() < n) BARRIER(); }\n"
    fake = FakeCupy(cache=Path(cache_dir))
    module, stream = Module(fake), Stream(fake, True)
    module.load(fake.cuda.nvrtc._library(text, ["-DGROUP=64"]))
    module.get_function("apart")((1,), (64,), (np.int32(64),), 0, stream)
    stream.synchronize()
    module.get_function("apart")((1,), (64,), (np.int32(63),), 0, stream)
    with pytest.raises(CUDARuntimeError, match="barrier"):
        stream.synchronize()


def test_memory(fake: FakeCupy) -> None:
    """Buffers start as zeros, copies take any offset, an array may change once it is uploaded, memory comes back."""
    device = device_on(fake)
    assert not device.download(device.zeros(1000), np.float32, 1000).any()
    buffer, array = device.alloc(4096), np.arange(100, dtype=np.int32)
    device.upload(buffer, array, 128)
    array[:] = 0
    assert device.download(buffer, np.int32, 100, 128).tolist() == list(range(100))
    before = fake.used
    del buffer
    assert fake.used == before - 4096


def test_out_of_memory_says_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_on(use(monkeypatch, FakeCupy(memory=100 << 20)))
    held = device.alloc(60 << 20)
    with pytest.raises(DeviceError, match=r"cuda/0: no room for 80 MiB more: 40 MiB of 100 MiB are free; a smaller --ctx"):
        device.alloc(80 << 20)
    assert held.nbytes == 60 << 20


def test_launch_styles(fake: FakeCupy) -> None:
    device = device_on(fake)
    launches = [Launch(KernelSpec("pick", "accept", SAMPLER), (*(device.zeros(64) for _ in range(5)), 0, device.zeros(64)), 1)]
    assert [device.record(launches, style).kind for style in ("auto", "buffer", "queue")] == ["CUDA graph", "CUDA graph", "queue"]
    fake.faults.add("begin_capture")
    assert device.record(launches).kind == "queue"
    with pytest.raises(DeviceError, match="launch=buffer: device cuda/0 records no graphs"):
        device.record(launches, "buffer")


def test_arguments_of_the_wrong_kind_are_found(fake: FakeCupy) -> None:
    """By the emulator: a driver would run the kernel on rubbish."""
    device = device_on(fake)
    with pytest.raises(DeviceError, match="pick"):
        device.record([Launch(KernelSpec("pick", "pick", SAMPLER), (1.0, 2), 1)], "buffer").run()


def test_a_lost_device(fake: FakeCupy) -> None:
    device = device_on(fake)
    fake.faults.add("synchronize")
    for call in (device.finish, lambda: device.download(device.zeros(4), np.float32, 4)):
        with pytest.raises(DeviceError, match=r"device cuda/0 failed: cudaErrorUnknown.*driver"):
            call()


def test_a_kernel_that_does_not_compile(fake: FakeCupy) -> None:
    fake.faults.add("nvrtc")
    with pytest.raises(DeviceError, match=r"does not compile on cuda cuda/0: Emulated GPU.*embed\.cl\(3\)"):
        device_on(fake).compile([KernelSpec("pick", "pick", SAMPLER)])


def test_programs_are_kept(tmp_path: Path, fake: FakeCupy) -> None:
    name, properties = cuda_devices(fake)[0]
    for _ in range(2):
        CudaDevice(fake, name, properties, cache_dir=str(tmp_path)).compile([KernelSpec("pick", "pick", SAMPLER)])
        assert len(list(tmp_path.iterdir())) == 1
        fake.faults.add("nvrtc")  # what is kept is not compiled again


def test_instructions(fake: FakeCupy) -> None:
    assert (device_on(fake).dot, device_on(fake, "portable").dot) == (BYTE_DOT, BASE_DOT)
    assert device_on(FakeCupy(capabilities=((6, 0),))).dot == BASE_DOT
    for architecture, dot in ((b"gfx1030", BYTE_DOT), (b"gfx906:sramecc+:xnack-", BYTE_DOT), (b"gfx1100", BYTE_DOT), (b"gfx900:xnack-", BASE_DOT)):
        assert device_on(FakeCupy(is_hip=True, architecture=architecture)).dot == dot


def test_old_cards_need_the_older_wheel() -> None:
    assert device_on(FakeCupy(capabilities=((7, 0),))).dot == BYTE_DOT
    with pytest.raises(DeviceError, match=r"Emulated GPU is older than CUDA 13 knows; .*cuda12"):
        device_on(FakeCupy(capabilities=((7, 0),), nvrtc_version=(13, 0)))


def test_a_card_newer_than_the_compiler_gets_ptx() -> None:
    assert device_on(FakeCupy(capabilities=((12, 0),), nvrtc_version=(12, 4)))._target() == (("--gpu-architecture=compute_90",), False)
    assert device_on(FakeCupy(capabilities=((12, 0),)))._target() == (("--gpu-architecture=sm_120",), True)


# Cards that lie between those a compiler knows: Thor, B300, DGX Spark, and one from the future.
@pytest.mark.parametrize("capability", [(10, 3), (11, 0), (12, 1), (15, 0)])
@pytest.mark.parametrize("version", [(12, 4), (12, 8), (12, 9), (13, 0)])
@pytest.mark.parametrize("asked", [True, False])
def test_the_target_is_one_that_the_compiler_knows(capability: tuple[int, int], version: tuple[int, int], asked: bool) -> None:
    """Never one above the card's own, whether CuPy asks the compiler or not."""
    known = COMPILES_FOR[max(key for key in COMPILES_FOR if key <= version)]
    fake = FakeCupy(capabilities=(capability,), nvrtc_version=version, architectures=known[::-1] if asked else None)
    (option,), is_machine_code = device_on(fake)._target()
    kind, _, number = option.removeprefix("--gpu-architecture=").partition("_")
    card = 10 * capability[0] + capability[1]
    assert int(number) == max(architecture for architecture in known if architecture <= card)
    assert (kind, is_machine_code) == (("sm", True) if int(number) == card else ("compute", False))


def test_what_the_compiler_says_goes_before_what_is_known_of_it() -> None:
    assert device_on(FakeCupy(capabilities=((9, 1),), architectures=(80, 91)))._target() == (("--gpu-architecture=sm_91",), True)
    with pytest.raises(DeviceError, match="Emulated GPU is older than CUDA 12 knows"):
        device_on(FakeCupy(capabilities=((7, 5),), architectures=(80, 91)))


def test_choosing(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeCupy(capabilities=((8, 6), (9, 0))))
    notices: list[str] = []
    assert open_device(DecodeConfig(), notices).name == "cuda/0"
    assert notices.pop().startswith("running on cuda/0: no GPU has tested this version")
    assert open_device(DecodeConfig(device="cuda/1"), notices).name == "cuda/1"
    assert open_device(DecodeConfig(backend="cuda", device="cuda/1"), notices).line.startswith("cuda cuda/1: Emulated GPU (4 units, sm_90, ")
    assert open_device(DecodeConfig(device="cpu"), notices).name == "cpu"
    assert open_device(DecodeConfig(backend="opencl"), notices).name == "cpu"
    assert open_device(DecodeConfig(backend="numpy"), notices).name == "numpy"
    assert open_device(DecodeConfig(kernel_shape="cpu"), notices).name == "cpu"
    for config, message in (
        (DecodeConfig(backend="cuda", device="cuda/2"), r"'cuda/2' is not allowed with backend cuda; allowed: cuda/0, cuda/1"),
        (DecodeConfig(device="cuda/2"), r"'cuda/2' is not allowed"),
        (DecodeConfig(backend="cuda", device="cpu"), r"'cpu' is not allowed with backend cuda"),
        (DecodeConfig(backend="cuda", kernel_shape="cpu"), r"kernel_shape"),
    ):
        with pytest.raises(BadValue, match=message):
            open_device(config, notices)
    with pytest.raises(DeviceError, match="no hip device"):
        open_device(DecodeConfig(backend="hip"), notices)
    assert notices == []


def test_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeCupy(capabilities=((8, 6), (6, 0))))
    found = list_devices()
    assert [(info.name, info.backend, info.default) for info in found[:3]] == [
        ("cuda/0", "cuda", True),
        ("cuda/1", "cuda", False),
        ("cpu", "opencl", False),
    ]
    assert [info.details["fast dot"] for info in found[:2]] == ["dp4a", "portable"]
    assert (found[0].driver, found[0].memory) == ("CUDA 12.9, NVRTC 12.9", 1 << 30)
    use(monkeypatch, FakeCupy(is_hip=True, architecture=b"gfx90a:sramecc+:xnack-"))
    assert (list_devices()[0].name, list_devices()[0].details["fast dot"]) == ("hip/0", "sdot4")


def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets there be a driver with a card."""
    monkeypatch.setattr(backends.cuda_driver, "nvidia_cards", lambda: (12040, (86,)))


def test_no_compiler_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """By everything that lists devices or opens one: CuPy without [ctk] imports, sees the cards and compiles nothing."""
    card(monkeypatch)
    use(monkeypatch, FakeCupy(faults={"libnvrtc"}))
    assert list_devices()[0].name == "cpu"
    (line,) = missing()
    assert re.fullmatch(r"CuPy finds no compiler \(CuPy failed to load libnvrtc\.so\.12: .*\); .* 'cupy-cuda12x\[ctk\]'", line)
    notices: list[str] = []
    assert open_device(DecodeConfig(), notices).name == "cpu"
    assert notices == [f"{line}; not running on the GPU"]
    for config in (DecodeConfig(backend="cuda"), DecodeConfig(device="cuda/0")):
        with pytest.raises(DeviceError, match="CuPy finds no compiler"):
            open_device(config, notices)


def test_no_card_that_a_driver_has_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    card(monkeypatch)
    use(monkeypatch, FakeCupy(capabilities=()))
    assert [line for line in missing() if line.startswith("CuPy finds no GPU, though a driver has one")] == missing() != []


def test_a_card_that_cannot_be_used_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `auto` and by a backend without a device, each with a notice; not where it is named. It is not the default."""
    card(monkeypatch)
    use(monkeypatch, FakeCupy(capabilities=((6, 0), (8, 6)), nvrtc_version=(13, 0)))
    notices: list[str] = []
    assert open_device(DecodeConfig(), notices).name == "cuda/1"
    first, second = notices
    assert "Emulated GPU is older than CUDA 13 knows" in first and first.endswith("not running on it") and second.startswith("running on cuda/1")
    assert open_device(DecodeConfig(backend="cuda"), notices).name == "cuda/1"
    with pytest.raises(DeviceError, match="device cuda/0: Emulated GPU is older"):
        open_device(DecodeConfig(device="cuda/0"), notices)
    assert [(info.name, info.default) for info in list_devices()[:3]] == [("cuda/0", False), ("cuda/1", True), ("cpu", False)]
    assert "older than CUDA 13" in list_devices()[0].details["cannot run a model"] and "cannot run a model" not in list_devices()[1].details
    assert [line.partition(":")[0] for line in missing()] == ["cuda/0"]


@pytest.mark.parametrize("settings", [{"capabilities": ((6, 0),), "nvrtc_version": (13, 0)}, {"faults": {"Stream"}}])
def test_auto_falls_back_where_no_card_can_be_used(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    card(monkeypatch)
    use(monkeypatch, FakeCupy(**settings))
    notices: list[str] = []
    assert open_device(DecodeConfig(), notices).name == "cpu"
    (notice,) = notices
    assert notice.startswith("device cuda/0") and notice.endswith("not running on it")
    with pytest.raises(DeviceError, match="device cuda/0"):
        open_device(DecodeConfig(backend="cuda"), [])


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a card is there but not usable, a notice says why `auto` runs elsewhere; where there is none, nothing is said."""
    use(monkeypatch, FakeCupy(faults={"getDeviceCount"}))
    with pytest.raises(DeviceError, match=r"CuPy finds no CUDA driver \(cudaErrorUnknown"):
        open_device(DecodeConfig(backend="cuda"), [])
    for cards, said in ((None, 0), ((12040, (86,)), 1)):
        monkeypatch.setattr(backends.cuda_driver, "nvidia_cards", lambda cards=cards: cards)
        monkeypatch.setattr(backends.cuda_driver, "amd_driver", lambda: False)
        notices: list[str] = []
        assert open_device(DecodeConfig(), notices).name == "cpu"
        assert (len(notices), len(missing())) == (said, said)
        assert list_devices()[0].name == "cpu"


@pytest.mark.parametrize(
    ("cards", "amd", "hint"),
    [
        ((12090, (60, 86)), False, r"before Turing \(Pascal, Volta\).*cupy-cuda12x"),
        ((12090, (86,)), False, r"cupy-cuda12x"),
        ((13000, (86,)), False, r"cupy-cuda13x"),
        (None, True, r"cupy-rocm-7-0"),
        (None, False, r"NVIDIA driver .*cuda12x.*cuda13x.*rocm"),
    ],
)
def test_no_cupy_says_which_wheel(cards: tuple[int, tuple[int, ...]] | None, amd: bool, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(backends.cuda_driver, "nvidia_cards", lambda: cards)
    monkeypatch.setattr(backends.cuda_driver, "amd_driver", lambda: amd)
    with pytest.raises(DeviceError, match=rf"CuPy cannot be imported.*{hint}"):
        open_device(DecodeConfig(backend="cuda"), [])
    assert [line for line in missing() if "CuPy" in line] == missing()
    assert bool(missing()) == bool(cards or amd)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("No module named 'cupy'", "No module named 'cupy'"),
        (
            f"\n{'=' * 64}\nFailed to import CuPy.\n\nIf you installed CuPy via wheels\n\nOriginal error:\n"
            f"  ImportError: libamdhip64.so.7: cannot open shared object file\n{'=' * 64}\n",
            "ImportError: libamdhip64.so.7: cannot open shared object file",
        ),
        (f"\n{'=' * 64}\nFailed to import CuPy.\n", "Failed to import CuPy."),
        ("", "ImportError"),
    ],
)
def test_why_cupy_cannot_be_imported(text: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its words, not the rulers around them."""

    def fail(name: str) -> None:
        raise ImportError(text)

    monkeypatch.setattr("backends.cuda.importlib.import_module", fail)
    with pytest.raises(DeviceError, match=rf"^CuPy cannot be imported \({re.escape(reason)}\); "):
        load_cupy()


def test_hints_name_this_environment() -> None:
    """A bare `pip` may be another's."""
    for hint in (backends.cuda_driver.CUDA_12, backends.cuda_driver.CUDA_13, backends.cuda_driver.ROCM):
        assert shlex.split(hint)[:4] == [sys.executable, "-m", "pip", "install"]
