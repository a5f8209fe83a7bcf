"""Record what an MTP layer of transformers' parts makes of tiny models: `python -m tests.golden.make_mtp_logits` (needs torch and transformers).

Writes mtp_logits.npz beside this file. transformers has no MTP layer for llama, so one is put together from its LlamaDecoderLayer,
LlamaRMSNorm and LlamaForCausalLM (the target) and torch's Linear, to the conventions that llama.cpp, vLLM and SGLang share:

- Cell p pairs h_p, the target's hidden state of row p after its final norm, with token p+1 and predicts token p+2:
  eh_proj of [enorm(embedding of token p+1) ; hnorm(h_p)] (the embedding first), one llama block, shared_head_norm, head.
- The block's attention is causal over the MTP cells alone. Cell p has RoPE position p+1, as in llama.cpp. RoPE sees only differences,
  so p, as in vLLM, would give the same but for the rounding of keys to float16.
- A chained step pairs the last step's hidden state after shared_head_norm with the token that was drafted, at the next position.
- What the drafter lacks (embedding, head, shared_head_norm) is the target's (embedding, head, final norm).
- llama.cpp has one more cell, token 0 with a hidden state of zeros at position 0. It is left out here, as in vLLM.

For every case of CASES: token ids; the logits of all cells ("cells"); and for each n of CUTS, from the last cell of the first n tokens on,
DEPTH steps that feed their own argmax ("drafts"): their logits ("chain") and hidden states after shared_head_norm ("hidden"). All but ids
and drafts twice: "half" with every key and value, the target's too, rounded to float16 as it enters the cache, "full" without (and with
the drafts of "half"). "meta" is JSON: versions, arguments of tests/tiny.py and hashes over the weights it gave.

Rounding to float16 turns an error of 1e-7 into one of 1e-3 where a value lies between two float16 numbers, and an argmax does worse. So
tokens are drawn at random among those whose keys and values, in the target, the cells and the chained steps, all keep away from such ties,
and whose drafts win by far: whoever computes in float32 with care rounds and drafts the same.
"""

from __future__ import annotations

import copy
import itertools
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.golden.make_llama_logits import arguments, distance, half_cache, halves, load, rotary, tensors, weights_hash
from tests.tiny import write_tiny_drafter, write_tiny_llama

RECORDING = Path(__file__).with_name("mtp_logits.npz")

# (the target's arguments, with nextn if the MTP block is in its file; those of write_tiny_drafter, beyond the sizes, if it has a file of its own)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "same-file-mha-head16": (arguments(seed=11, n_vocab=192, n_embd=64, n_head=2, n_head_kv=2, head_dim=16, nextn=True), None),
    "same-file-gqa2-head64-untied": (
        arguments(seed=12, n_vocab=219, n_embd=96, n_layer=1, n_head=2, n_head_kv=1, head_dim=64, n_ff=224, tied=False, nextn=True, draft_seed=112),
        None,
    ),
    "own-head-gqa4-head32": (
        arguments(seed=13, n_vocab=203, n_embd=128, n_head=4, n_head_kv=1, head_dim=32, n_ff=160, tied=False),
        arguments(seed=113, own_head=True),
    ),
    "own-embedding-no-norm-gqa3-head32": (
        arguments(seed=14, n_vocab=181, n_embd=96, n_head=3, n_head_kv=1, head_dim=32, n_ff=160),
        arguments(seed=114, own_embedding=True, own_norm=False),
    ),
}
LENGTH, DEPTH = 40, 4
CUTS = (5, 17, 39)
DECIDED = 0.05  # a draft's logit above all others
CLEAR = (2.5e-6, 1.5e-6)  # from a tie between float16 numbers, the first for which there is a sequence; float32 errs by 1e-6 here, seldom more
PATIENCE, ATTEMPTS = 500, 4  # tokens tried in one search, before another starts afresh; searches


def write(folder: Path, name: str) -> tuple[Path, Path | None]:
    """The case's model, and its drafter's file if that is another."""
    target, drafter = CASES[name]
    model = write_tiny_llama(folder / f"{name}.gguf", **target)
    if drafter is None:
        return model, None
    sizes = {key: value for key, value in target.items() if key not in ("seed", "tied")}
    return model, write_tiny_drafter(folder / f"{name}.drafter.gguf", **sizes, **drafter)


def load_target(folder: Path, name: str) -> Any:
    """The case's target as a LlamaForCausalLM, from a file without the MTP block, which must not differ otherwise."""
    target = {key: value for key, value in CASES[name][0].items() if key not in ("nextn", "draft_seed")}
    path = write_tiny_llama(folder / "target.gguf", **target)
    with_block = tensors(write(folder, name)[0])
    assert all(np.array_equal(array, with_block[tensor]) for tensor, array in tensors(path).items())
    return load(path)


def load_drafter(path: Path, target: Any) -> Any:
    """The MTP layer in the file, as a module in float64: (tokens, hidden states, positions, cache) -> (logits, hidden states)."""
    import torch
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

    config, eps = target.config, target.config.rms_norm_eps
    size, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    rope, float32_rope = rotary(config.head_dim, config.rope_parameters["rope_theta"]), LlamaRotaryEmbedding(config)

    class Drafter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enorm, self.hnorm = LlamaRMSNorm(size, eps), LlamaRMSNorm(size, eps)
            self.eh_proj = torch.nn.Linear(2 * size, size, bias=False)
            self.block = LlamaDecoderLayer(config, layer_idx=0)
            self.embedding, self.norm, self.head = target.model.embed_tokens, target.model.norm, target.lm_head

        def forward(self, tokens: Any, hidden: Any, positions: Any, cache: Any) -> tuple[Any, Any]:
            past, rows = cache.get_seq_length(), tokens.shape[1]
            angles = rope(tokens, positions)
            for ours, theirs in zip(angles, float32_rope(hidden, positions), strict=True):
                assert torch.allclose(ours, theirs, atol=1e-5)
            mask = torch.full((rows, past + rows), -torch.inf, dtype=torch.float64).triu(past + 1)[None, None]
            x = self.eh_proj(torch.cat((self.enorm(self.embedding(tokens)), self.hnorm(hidden)), -1))
            x = self.block(x, attention_mask=mask, past_key_values=cache, use_cache=True, position_embeddings=angles)
            out = self.norm(x)
            return self.head(out), out

    arrays = {name.split(".", 2)[2]: array for name, array in tensors(path).items() if name.startswith(f"blk.{config.num_hidden_layers}.")}

    def take(name: str) -> Any:
        return torch.from_numpy(arrays.pop(name + ".weight")).double()

    for name, count in (("attn_q.weight", heads), ("attn_k.weight", kv_heads)):
        arrays[name] = np.ascontiguousarray(halves(arrays[name], count))
    names = {
        "enorm": "nextn.enorm",
        "hnorm": "nextn.hnorm",
        "eh_proj": "nextn.eh_proj",
        "block.input_layernorm": "attn_norm",
        "block.self_attn.q_proj": "attn_q",
        "block.self_attn.k_proj": "attn_k",
        "block.self_attn.v_proj": "attn_v",
        "block.self_attn.o_proj": "attn_output",
        "block.post_attention_layernorm": "ffn_norm",
        "block.mlp.gate_proj": "ffn_gate",
        "block.mlp.up_proj": "ffn_up",
        "block.mlp.down_proj": "ffn_down",
    }
    drafter = Drafter()
    missing, unexpected = drafter.load_state_dict({theirs + ".weight": take(ours) for theirs, ours in names.items()}, strict=False)
    assert not unexpected and set(missing) == {"embedding.weight", "norm.weight", "head.weight"}, (missing, unexpected)
    if "nextn.shared_head_norm.weight" in arrays:
        drafter.norm = LlamaRMSNorm(size, eps)
        drafter.norm.weight.data = take("nextn.shared_head_norm")
    if "nextn.embed_tokens.weight" in arrays:
        drafter.embedding = torch.nn.Embedding.from_pretrained(take("nextn.embed_tokens"))
    if "nextn.shared_head_head.weight" in arrays:
        drafter.head = torch.nn.Linear(size, config.vocab_size, bias=False)
        drafter.head.weight.data = take("nextn.shared_head_head")
    assert not arrays, sorted(arrays)
    return drafter.double().eval()


def hidden_states(target: Any, ids: NDArray[np.int32], cache: Any) -> Any:
    """The target's hidden states [1, ids, n_embd] after its final norm."""
    import torch

    return target.model(torch.from_numpy(ids).long()[None], past_key_values=cache, use_cache=True).last_hidden_state


def run_cells(drafter: Any, hidden: Any, ids: NDArray[np.int32], cache: Any) -> tuple[Any, Any]:
    """Logits and hidden states of the cells of these tokens, all but the first."""
    import torch

    return drafter(torch.from_numpy(ids[1:]).long()[None], hidden[:, : len(ids) - 1], torch.arange(1, len(ids))[None], cache)


@dataclass
class Chain:
    """DEPTH steps from a cut on. away: the distance of the chained cells from ties. lead: of each draft's logit from the second."""

    drafts: NDArray[np.int32]
    logits: NDArray[np.float64]
    hidden: NDArray[np.float64]
    away: float

    @property
    def lead(self) -> float:
        """By how much the closest of its drafts won."""
        best = np.sort(self.logits, 1)
        return float((best[:, -1] - best[:, -2]).min())


def run_chain(drafter: Any, hidden: Any, ids: NDArray[np.int32], cache: Any, forced: Sequence[int] | None = None) -> Chain:
    """From the cells of these tokens: steps that feed their own argmax, or the tokens given."""
    import torch

    logits, states = (found[:, -1:] for found in run_cells(drafter, hidden, ids, cache))
    cache.fresh = []
    drafts, all_logits, all_states = [], [logits], [states]
    for step in range(DEPTH):
        drafts.append(int(logits.argmax()) if forced is None else int(forced[step]))
        if step < DEPTH - 1:
            logits, states = drafter(torch.tensor([[drafts[-1]]]), states, torch.tensor([[len(ids) + step]]), cache)
            all_logits.append(logits)
            all_states.append(states)
    away = min(float(distance(t.numpy()).min()) for t in cache.fresh) if cache.fresh else np.inf
    return Chain(np.array(drafts, np.int32), torch.cat(all_logits, 1)[0].numpy(), torch.cat(all_states, 1)[0].numpy(), away)


@dataclass
class Prefix:
    """The tokens drawn so far: the caches of target and drafter, the last hidden state, and the tokens that may follow and were not tried."""

    caches: tuple[Any, Any]
    hidden: Any
    untried: list[int]
    away: NDArray[np.float64]


def extend(target: Any, drafter: Any, prefix: Prefix, tokens: Any, position: int) -> Prefix:
    """The prefix with each of the tokens [tokens, 1] behind it, at this position; nothing tried yet. away: distances from ties."""
    import torch

    caches = copy.deepcopy(prefix.caches)
    for cache in caches:
        cache.fresh = []
        if cache.get_seq_length():
            cache.batch_repeat_interleave(len(tokens))
    positions = torch.full(tokens.shape, position)
    hidden = target.model(tokens, past_key_values=caches[0], use_cache=True, position_ids=positions).last_hidden_state
    if position:
        drafter(tokens, prefix.hidden.expand(len(tokens), 1, -1), positions, caches[1])
    away = np.min([distance(t.numpy()).reshape(len(tokens), -1).min(1) for cache in caches for t in cache.fresh], 0)
    return Prefix(caches, hidden, [], away)


def draw_tokens(target: Any, drafter: Any, rng: np.random.Generator, clear: float) -> tuple[NDArray[np.int32], float] | None:
    """Random tokens all `clear` of ties, with chains at CUTS that are, and decided; the smallest distance. A dead end takes a token back."""
    import torch

    everything = torch.arange(target.config.vocab_size)[:, None]

    def enter(prefix: Prefix, position: int) -> Prefix:
        allowed = np.flatnonzero(extend(target, drafter, prefix, everything, position).away >= clear)
        prefix.untried = rng.permutation(allowed).tolist()
        return prefix

    ids: list[int] = []
    prefixes = [enter(Prefix((half_cache(), half_cache()), None, [], np.array([np.inf])), 0)]
    ends: dict[int, float] = {}
    for _ in range(PATIENCE):
        if not prefixes[-1].untried:
            if not ids:
                return None
            prefixes.pop()
            ids.pop()
            continue
        token = prefixes[-1].untried.pop()
        drawn = np.array([*ids, token], np.int32)
        if len(drawn) in CUTS:
            chain = run_chain(drafter, hidden_states(target, drawn, half_cache()), drawn, half_cache())
            if chain.away < clear or chain.lead < DECIDED:
                continue
            ends[len(drawn)] = chain.away
        prefixes.append(extend(target, drafter, prefixes[-1], torch.tensor([[token]]), len(ids)))
        ids.append(token)
        if len(ids) == LENGTH:
            return drawn, min(*ends.values(), *(float(prefix.away[0]) for prefix in prefixes))
        enter(prefixes[-1], len(ids))
    return None


def record(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The case's arrays and its part of the metadata."""
    from transformers import DynamicCache

    with tempfile.TemporaryDirectory() as folder:
        target = load_target(Path(folder), name)
        paths = [path for path in write(Path(folder), name) if path is not None]
        drafter = load_drafter(paths[-1], target)
        hashes = [weights_hash(path) for path in paths]
    searches = itertools.product(CLEAR, range(ATTEMPTS))
    rngs = ((clear, np.random.default_rng((CASES[name][0]["seed"], attempt))) for clear, attempt in searches)
    drawn = next(filter(None, (draw_tokens(target, drafter, rng, clear) for clear, rng in rngs)), None)
    assert drawn is not None, f"{name}: there is no such sequence; take other seeds"
    ids, away = drawn
    arrays: dict[str, Any] = {"ids": ids}
    chains: list[Chain] = []
    for kind, new in (("half", half_cache), ("full", DynamicCache)):
        hidden = hidden_states(target, ids, new())
        arrays[f"cells/{kind}"] = run_cells(drafter, hidden, ids, new())[0][0].numpy()
        forced = [chain.drafts for chain in chains] or [None] * len(CUTS)
        chains = [run_chain(drafter, hidden, ids[:n], new(), drafts) for n, drafts in zip(CUTS, forced, strict=True)]
        arrays |= {f"chain/{kind}": np.stack([c.logits for c in chains]), f"hidden/{kind}": np.stack([c.hidden for c in chains])}
        if kind == "half":
            arrays["drafts"], lead = np.stack([c.drafts for c in chains]), min(c.lead for c in chains)
    effect = max(np.abs(arrays[f"{what}/half"] - arrays[f"{what}/full"]).max() for what in ("cells", "chain"))
    print(
        f"{name}: {len(set(ids.tolist()))} tokens, {away:.1e} from a tie, drafts win by {lead:.3f}, "
        f"deviation of logits {arrays['cells/half'].std():.2f}, effect of f16 keys and values {effect:.1e}",
        flush=True,
    )
    kept = {f"{name}/{what}": array.astype(np.float32) if array.dtype == np.float64 else array for what, array in arrays.items()}
    return kept, {"arguments": CASES[name], "weights": hashes}


def main() -> None:
    """Write the recording."""
    import torch
    import transformers

    torch.set_num_threads(1)  # the tensors are tiny
    arrays: dict[str, Any] = {}
    meta: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__, "cases": {}}
    with torch.no_grad():
        for name in CASES:
            found, meta["cases"][name] = record(name)
            arrays |= found
    np.savez_compressed(RECORDING, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays)
    print(f"{RECORDING.name}: {RECORDING.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
