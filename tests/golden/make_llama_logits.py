"""Record what transformers makes of tiny random llama models: `python -m tests.golden.make_llama_logits` (needs torch and transformers).

Writes llama_logits.npz beside this file: for every case of CASES the token ids and positions and, at those positions, the logits of
LlamaForCausalLM with the same F32 weights, once with every key and value rounded to float16 as it enters the cache ("half": what an
f16 KV cache does) and once without ("full"). "meta" is JSON: versions, arguments of tests/tiny.py and a hash over the weights it gave.

Rounding to float16 can turn an error of 1e-7 into one of 1e-3, where a value lies between two float16 numbers. So tokens are drawn at
random among those whose keys and values all keep away from such ties: whoever computes in float32 with care rounds the same way.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.tiny import write_tiny_llama

RECORDING = Path(__file__).with_name("llama_logits.npz")


def arguments(**kwargs: Any) -> dict[str, Any]:
    """Arguments of write_tiny_llama."""
    return kwargs


CASES = {
    "tied-gqa2-head16": arguments(seed=1, n_vocab=96),
    "untied-gqa4-head32": arguments(seed=2, n_vocab=101, n_embd=128, n_layer=3, n_head=4, n_head_kv=1, head_dim=32, n_ff=160, tied=False),
    "tied-gqa3-head32": arguments(seed=3, n_vocab=77, n_embd=96, n_layer=2, n_head=3, n_head_kv=1, head_dim=32, n_ff=160),
    "untied-gqa2-head64": arguments(seed=4, n_vocab=131, n_embd=96, n_layer=3, n_head=2, n_head_kv=1, head_dim=64, n_ff=224, tied=False),
    "tied-gqa3-head16": arguments(seed=5, n_vocab=83, n_embd=96, n_layer=3, n_head=6, n_head_kv=2, head_dim=16, n_ff=96),
    "untied-mha-head16": arguments(seed=6, n_vocab=64, n_embd=160, n_layer=2, n_head=2, n_head_kv=2, head_dim=16, n_ff=32, tied=False),
}
LONG, SHORT = 150, 40
LONG_CASES = ("untied-gqa4-head32", "untied-gqa2-head64", "tied-gqa3-head16")
# Block edges of the KV cache (64 positions) and of windows (8 rows), and the ends.
MARGIN = 4e-6  # from a tie, for values large enough that the step between float16 numbers (2^-15 and more) matters
LARGE = 2.0**-5
LONG_POSITIONS = (0, 1, 2, 7, 8, 15, 40, 62, 63, 64, 65, 79, 126, 127, 128, 129, 148, 149)


def tensors(path: Path) -> dict[str, NDArray[Any]]:
    """The file's tensors, by name in sorted order."""
    return {t.name: np.array(t.data) for t in sorted(gguf.GGUFReader(path).tensors, key=lambda t: t.name)}


def weights_hash(path: Path) -> str:
    """A hash over names and bytes of all tensors."""
    sha = hashlib.sha256()
    for name, data in tensors(path).items():
        sha.update(name.encode() + b"\0" + data.tobytes())
    return sha.hexdigest()


def halves(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Query or key rows of a GGUF (rotated pairs side by side) in transformers' order (pairs half a head apart)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def load(path: Path) -> Any:
    """The GGUF as a LlamaForCausalLM in float64."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    fields, arrays = gguf.GGUFReader(path).fields, tensors(path)

    def value(key: str, default: Any = None) -> Any:
        return fields[f"llama.{key}"].contents() if f"llama.{key}" in fields else default

    embd, heads = value("embedding_length"), value("attention.head_count")
    head_dim, kv_heads = value("attention.key_length", embd // heads), value("attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=len(arrays["token_embd.weight"]),
        hidden_size=embd,
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        tie_word_embeddings="output.weight" not in arrays,
        attn_implementation="eager",
        bos_token_id=None,
        eos_token_id=None,
    )
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    if "output.weight" in arrays:
        names["lm_head"] = "output"
    for i in range(config.num_hidden_layers):
        names |= {
            f"model.layers.{i}.{theirs}": f"blk.{i}.{ours}"
            for theirs, ours in {
                "input_layernorm": "attn_norm",
                "self_attn.q_proj": "attn_q",
                "self_attn.k_proj": "attn_k",
                "self_attn.v_proj": "attn_v",
                "self_attn.o_proj": "attn_output",
                "post_attention_layernorm": "ffn_norm",
                "mlp.gate_proj": "ffn_gate",
                "mlp.up_proj": "ffn_up",
                "mlp.down_proj": "ffn_down",
            }.items()
        }
    state = {}
    for theirs, ours in names.items():
        array = arrays.pop(ours + ".weight")
        if theirs.endswith(("q_proj", "k_proj")):
            array = halves(array, heads if theirs.endswith("q_proj") else kv_heads)
        state[theirs + ".weight"] = torch.from_numpy(np.ascontiguousarray(array)).double()
    assert not arrays, sorted(arrays)
    model = LlamaForCausalLM(config).double().eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    model.model.rotary_emb = rotary(head_dim, value("rope.freq_base"))
    return model


def rotary(head_dim: int, base: float) -> Any:
    """RoPE's cosines and sines as LlamaRotaryEmbedding gives them, but in float64: in float32 they are off by 1e-5 at position 150."""
    import torch

    class Rotary(torch.nn.Module):
        def forward(self, x: Any, position_ids: Any) -> Any:
            angles = position_ids[..., None].double() / base ** (torch.arange(0, head_dim, 2).double() / head_dim)
            both = torch.cat((angles, angles), -1)
            return both.cos(), both.sin()

    return Rotary()


def half_cache() -> Any:
    """A cache that rounds keys and values to float16; `fresh` has the last ones before rounding, [layers * 2][batch, heads, rows, dim]."""
    from transformers import DynamicCache

    class HalfCache(DynamicCache):
        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
            self.fresh = [*getattr(self, "fresh", []), key_states, value_states]
            return super().update(key_states.half().to(key_states.dtype), value_states.half().to(value_states.dtype), *args, **kwargs)

    return HalfCache()


def logits(model: Any, ids: NDArray[np.int32], cache: Any) -> NDArray[np.float64]:
    """Logits of all positions, run in one pass."""
    import torch

    with torch.no_grad():
        found = model(torch.from_numpy(ids).long()[None], past_key_values=cache, use_cache=True).logits[0]
    assert found.dtype == torch.float64
    return np.asarray(found.numpy())


def distance(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far values are from the nearest tie between float16 numbers; infinity for small ones."""
    magnitude = np.abs(values)
    step = 2.0 ** (np.floor(np.log2(np.maximum(magnitude, LARGE))) - 10)
    away = np.abs(magnitude / step % 1 - 0.5) * step
    return np.where(magnitude < LARGE, np.inf, away)


def draw_tokens(model: Any, count: int, n_vocab: int, rng: np.random.Generator) -> tuple[NDArray[np.int32], float]:
    """Random tokens whose keys and values keep MARGIN from ties, or else the best that there is; the smallest distance."""
    import torch

    cache, ids, worst = half_cache(), [], np.inf
    for position in range(count):
        if position:
            cache.batch_repeat_interleave(n_vocab)
        cache.fresh = []
        with torch.no_grad():
            model(torch.arange(n_vocab)[:, None], past_key_values=cache, use_cache=True, position_ids=torch.full((n_vocab, 1), position))
        away = np.min([distance(t.numpy()).reshape(n_vocab, -1).min(1) for t in cache.fresh], 0)
        clean = np.flatnonzero(away >= MARGIN)
        token = int(rng.choice(clean)) if len(clean) else int(np.argmax(away))
        cache.batch_select_indices(torch.tensor([token]))
        ids.append(token)
        worst = min(worst, away[token])
    return np.array(ids, np.int32), worst


def main() -> None:
    """Write the recording."""
    import torch
    import transformers
    from transformers import DynamicCache

    torch.set_num_threads(2)
    arrays: dict[str, Any] = {}
    meta: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__, "cases": {}}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = write_tiny_llama(Path(folder) / "model.gguf", **case)
            model, digest = load(path), weights_hash(path)
        long = name in LONG_CASES
        ids, away = draw_tokens(model, LONG if long else SHORT, case["n_vocab"], np.random.default_rng(1000 + case["seed"]))
        positions = np.array(LONG_POSITIONS if long else range(SHORT), np.int32)
        half, full = (logits(model, ids, cache)[positions] for cache in (half_cache(), DynamicCache()))
        meta["cases"][name] = {"arguments": case, "weights": digest}
        kept = {"ids": ids, "positions": positions, "half": half.astype(np.float32), "full": full.astype(np.float32)}
        arrays |= {f"{name}/{what}": array for what, array in kept.items()}
        effect = np.abs(half - full).max()
        print(
            f"{name}: deviation of logits {half.std():.2f}, effect of f16 keys and values {effect:.1e}, {away:.1e} from a tie, {len(set(ids))} tokens"
        )
    np.savez_compressed(RECORDING, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays)
    print(f"{RECORDING.name}: {RECORDING.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
