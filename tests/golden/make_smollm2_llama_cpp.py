"""Record llama.cpp's greedy tokens: `python tests/golden/make_smollm2_llama_cpp.py MODEL.gguf` (needs llama-cpp-python).

Writes smollm2_llama_cpp.json beside this file: for every prompt its token ids, the next COUNT greedy ids (f16 KV cache, no END among
them), their text, and by how much each one's logit leads the second best.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np

COUNT = 64
PROMPTS = {
    "story": "<|im_start|>user\nWrite a long story about a ship in a storm.<|im_end|>\n<|im_start|>assistant\n",
    "thermodynamics": (
        "The laws of thermodynamics are a set of scientific laws which define physical quantities, such as temperature, energy and entropy, "
        "that characterize"
    ),
    "python": (
        "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n\n\n"
        'def is_prime(n):\n    """Whether n is a prime number."""\n'
    ),
    "list": (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nExplain step by step how a bill becomes a law, as a numbered list.<|im_end|>\n<|im_start|>assistant\n"
    ),
}


def main(model_path: str) -> None:
    """Write the recording."""
    llama = llama_cpp.Llama(model_path, n_ctx=512, n_threads=2, n_threads_batch=2, verbose=False)
    vocab = llama_cpp.llama_model_get_vocab(llama._model.model)
    cases = {}
    for name, prompt in PROMPTS.items():
        ids = llama.tokenize(prompt.encode(), add_bos=False, special=True)
        llama.reset()
        llama.eval(ids)
        greedy: list[int] = []
        leads: list[float] = []
        for _ in range(COUNT):
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llama._ctx.ctx, -1), (llama.n_vocab(),))
            second, best = np.partition(logits, -2)[-2:]
            token = int(np.argmax(logits))
            if llama_cpp.llama_vocab_is_eog(vocab, token):
                sys.exit(f"{name}: ends after {len(greedy)} tokens; another prompt is needed")
            greedy.append(token)
            leads.append(round(float(best - second), 3))
            llama.eval([token])
        text = llama.detokenize(greedy).decode()
        print(f"--- {name}: {len(ids)} prompt tokens\n{text}")
        cases[name] = {"prompt": prompt, "prompt_ids": ids, "greedy_ids": greedy, "text": text, "leads": leads}
    found = {
        "llama_cpp_python": llama_cpp.__version__,
        "model_sha256": hashlib.sha256(Path(model_path).read_bytes()).hexdigest(),
        "cases": cases,
    }
    lines = json.dumps(found).replace(': {"prompt"', ': {\n"prompt"').replace(', "', ',\n"')
    Path(__file__).with_name("smollm2_llama_cpp.json").write_text(lines + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
