"""llama.cpp as an arm of `strata bench`: a job as JSON on standard input, JSON lines on standard output, as docs/bench.md has them.

Runs in an environment of its own that has llama-cpp-python; nothing of this project is imported. Tokens are picked by llama.cpp's own
samplers, in its own order and with its own random numbers, so sampled texts are never Strata's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from typing import Any

import llama_cpp

WARM_UP = 8


class Peer:
    """A loaded model."""

    def __init__(self, job: dict[str, Any], threads: int) -> None:
        started = time.perf_counter()
        self.llama = llama_cpp.Llama(job["model"], n_ctx=job["ctx"], n_threads=threads, n_threads_batch=threads, verbose=False)
        self.load_ms = 1e3 * (time.perf_counter() - started)
        self.vocab = llama_cpp.llama_model_get_vocab(self.llama.model)

    def evaluate(self, ids: list[int], position: int) -> float:
        """Milliseconds to run ids from a position on, the logits of the last one included."""
        self.llama.n_tokens = position
        started = time.perf_counter()
        self.llama.eval(ids)  # drops the cells behind n_tokens first
        return 1e3 * (time.perf_counter() - started)

    def answer(self, prompt: dict[str, Any], max_new: int) -> dict[str, Any]:
        """Runs a prompt; times as Strata has them: prefill is all tokens but the last, which the first round of decoding runs."""
        ids, made = prompt["token_ids"], []
        limit = self.llama.n_ctx() - len(ids) + 1
        limit = limit if max_new == -1 else min(max_new, limit)
        sampler = self._sampler(prompt)
        self.llama.n_tokens = 0
        prefill = self.evaluate(ids[:-1], 0) if len(ids) > 1 else 0.0
        started = time.perf_counter()
        token = ids[-1]
        while len(made) < limit:
            self.llama.eval([token])
            token = llama_cpp.llama_sampler_sample(sampler, self.llama.ctx, -1)
            made.append(token)
            if not prompt["ignore_eos"] and llama_cpp.llama_vocab_is_eog(self.vocab, token):
                break
        decode = 1e3 * (time.perf_counter() - started)
        llama_cpp.llama_sampler_free(sampler)
        text = self.llama.detokenize(made).decode(errors="replace")
        times = {"prompt_tokens": len(ids), "prefill_ms": prefill, "decode_ms": decode}
        return {"id": prompt["id"], "mode": prompt["mode"], "token_ids": made, "text": text, **times}

    def windows(self, job: dict[str, Any]) -> dict[str, list[float]]:
        """Milliseconds of windows behind the longest prompt; llama.cpp makes the logits of the last row alone."""
        ids = max((prompt["token_ids"] for prompt in job["prompts"]), key=len)
        self.evaluate(ids, 0)
        sizes = [rows for rows in job["windows"] if len(ids) + rows <= self.llama.n_ctx()]
        return {str(rows): [self.evaluate((ids * rows)[:rows], len(ids)) for _ in range(1 + job["repeats"])][1:] for rows in sizes}

    def _sampler(self, prompt: dict[str, Any]) -> Any:
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        parts = []
        if (prompt["repeat_penalty"], prompt["presence_penalty"], prompt["frequency_penalty"]) != (1, 0, 0):
            penalties = (prompt["repeat_last_n"], prompt["repeat_penalty"], prompt["frequency_penalty"], prompt["presence_penalty"])
            parts.append(llama_cpp.llama_sampler_init_penalties(*penalties))
        if prompt["temperature"] == 0:
            parts.append(llama_cpp.llama_sampler_init_greedy())
        else:
            parts += [llama_cpp.llama_sampler_init_top_k(prompt["top_k"]), llama_cpp.llama_sampler_init_top_p(prompt["top_p"], 1)]
            parts += [llama_cpp.llama_sampler_init_min_p(prompt["min_p"], 1), llama_cpp.llama_sampler_init_temp(prompt["temperature"])]
            parts.append(llama_cpp.llama_sampler_init_dist(prompt["seed"] & 0xFFFFFFFF))
        for part in parts:
            llama_cpp.llama_sampler_chain_add(chain, part)
        return chain


def main() -> None:
    """Answers the job."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    job: dict[str, Any] = json.load(sys.stdin)
    peer = Peer(job, args.threads)
    longest = max(job["prompts"], key=lambda prompt: len(prompt["token_ids"]))
    peer.answer(longest, WARM_UP)
    for prompt in job["prompts"]:
        print(json.dumps(peer.answer(prompt, prompt["max_new"])), flush=True)
    about = {"llama-cpp-python": llama_cpp.__version__, "llama.cpp": llama_cpp.llama_print_system_info().decode().strip()}
    about |= {"Python": platform.python_version(), "threads": args.threads}
    print(json.dumps({"about": about, "load_ms": peer.load_ms, "window_ms": peer.windows(job)}))


if __name__ == "__main__":
    main()
