"""One measurement of llama.cpp for decode_vs_llama_cpp.py: a job as JSON on standard input, times as JSON on standard output.

Runs in an environment of its own that has llama-cpp-python; nothing of this project is imported. Tokens are picked by a plain argmax
over llama.cpp's logits, which costs less than llama-cpp-python's sampler.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import llama_cpp
import numpy as np


def main() -> None:
    job: dict[str, Any] = json.load(sys.stdin)
    llama = llama_cpp.Llama(job["model"], n_ctx=job["ctx"], n_threads=job["threads"], n_threads_batch=job["threads"], verbose=False)
    prompt, vocab = job["prompt"], llama.n_vocab()

    def evaluate(ids: list[int], position: int) -> float:
        """Milliseconds to run ids from a position on, the logits of the last one included."""
        llama.n_tokens = position
        started = time.perf_counter()
        llama.eval(ids)  # drops the cells behind n_tokens first
        return 1e3 * (time.perf_counter() - started)

    def pick() -> int:
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llama.ctx, -1), (vocab,))
        return int(logits.argmax())

    evaluate(job["prefill"], 0)  # warm
    prefill = [evaluate(job["prefill"], 0) for _ in range(job["prefills"])]

    evaluate(prompt, 0)
    ids: list[int] = []
    started = time.perf_counter()
    for _ in range(job["tokens"]):
        ids.append(pick())
        llama.eval(ids[-1:])
    decode = 1e3 * (time.perf_counter() - started)

    evaluate(prompt, 0)
    windows = {rows: [evaluate((prompt * rows)[:rows], len(prompt)) for _ in range(job["repeats"])] for rows in job["windows"]}
    about = {"llama-cpp-python": llama_cpp.__version__, "llama.cpp": llama_cpp.llama_print_system_info().decode().strip()}
    print(json.dumps({"prefill_ms": prefill, "decode_ms": decode, "token_ids": ids, "window_ms": windows, "about": about}))


if __name__ == "__main__":
    main()
