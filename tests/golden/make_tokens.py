"""Record what llama.cpp makes of SmolLM2's vocabulary: `python tests/golden/make_tokens.py MODEL.gguf` (needs llama-cpp-python).

Writes smollm2_tokens.json beside this file: token ids of diverse texts with special texts read as tokens or as text, END ids,
a hash over what every token adds to generated text, and conversations as llama.cpp's own (C++) ChatML renders them.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from pathlib import Path

import llama_cpp

TEXTS = [
    "", " ", "  ", "   a", "a   ", "\n", "\n\n", "\n\n\n  x", " \n \n", "\t\tif x:\n\t\t\treturn\n",
    "a\r\nb\r\n\r\nc", "\u00a0nbsp\u00a0 x", "\u2003em\u2003\u2003space", "Hello, world!",
    "hello world hello World HELLO", "The quick brown fox jumps over the lazy dog.",
    "don't can't I'm we'll they've he'd it's", "DON'T I'M WE'LL", "naïve café résumé",
    "cafe\u0301 re\u0301sume\u0301 n\u0303", "Z\u0351\u036b\u0343a\u0363\u030el\u0349g\u035ao", "Ünïcödé ß ẞ ǅ", "0",
    "12345", "3.14159 -2e10 0xFF 1,000,000", "x1y22z333", "٣٤٥ ٠١", "²³¹ ½ ⅷ ①②", "१२३ ๑๒๓", "2026-11-29T12:34:56Z",
    "def f(x: int) -> int:\n    return x ** 2  # square\n", "for (int i = 0; i < n; ++i) { a[i] += b[i]; }",
    "SELECT * FROM t WHERE a='b' AND c<>3;", "<div class=\"x\">a &amp; b</div>", "{\"key\": [1, 2.5, null, true]}",
    "https://example.org/a/b?c=d&e=f#g", "user@example.com", "#!/bin/sh\necho \"$HOME\" | tr a-z A-Z",
    "snake_case camelCase kebab-case PascalCase", "!!! ??? ... --- === *** ///", "a--b – c — d … “quoted” ‘x’",
    "$100 €50 £20 ¥7 50% §3", "\\alpha \\frac{a}{b} x_1^2 ≤ ∞ ∑", "你好，世界！", "日本語のテキストです。", "한국어 문장입니다.",
    "Привет, мир!", "Γειά σου Κόσμε", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก", "😀",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪", "a😀b 🎉🎉", "\u200b\u200d\ufeffzero", "\x00\x01\x1f\x7f", "\u0085\u2028\u2029",
    "\U0001d54f\U00020000\U0010fffd", "\ufffd\uffff", "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|>", "a<|im_end|>b", " <|im_end|> ", "<|im_start|><|im_start|>", "<|im_star", "<<|im_end|>>",
    "<|IM_END|>", "<repo_name>x<reponame>y<file_sep>", "<empty_output>\n", "<|im_end|",
    "l" * 50 + " " * 40 + "\n" * 20, "word " * 30, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]  # fmt: skip

CHATS = [
    [("system", "Be brief."), ("user", "Hi")],
    [("system", "You are a poet.\nRhyme."), ("user", "One line, please"), ("assistant", "Roses are red"), ("user", "More <b>now</b> é 😀")],
]


def render(template: str, chat: list[tuple[str, str]], generation_prompt: bool) -> str:
    """The conversation as llama.cpp's C++ code renders it."""
    messages = (llama_cpp.llama_chat_message * len(chat))(*[llama_cpp.llama_chat_message(role.encode(), text.encode()) for role, text in chat])
    buffer = ctypes.create_string_buffer(1 << 16)
    length = llama_cpp.llama_chat_apply_template(template.encode(), messages, len(chat), generation_prompt, buffer, len(buffer))
    assert 0 < length < len(buffer)
    return buffer.raw[:length].decode()


def main(model_path: str) -> None:
    """Write the recording."""
    llama = llama_cpp.Llama(model_path, vocab_only=True, verbose=False)
    vocab = llama_cpp.llama_model_get_vocab(llama._model.model)
    n_vocab = llama_cpp.llama_vocab_n_tokens(vocab)

    def ids(text: str, special: bool) -> list[int]:
        return list(llama.tokenize(text.encode(), add_bos=False, special=special))

    pieces = hashlib.sha256()
    buffer = ctypes.create_string_buffer(4096)
    for token in range(n_vocab):
        length = llama_cpp.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, False)
        pieces.update(length.to_bytes(4, "little") + buffer.raw[:length])
    template = llama.metadata["tokenizer.chat_template"]
    result = {
        "made_by": f"llama-cpp-python {llama_cpp.__version__}",
        "n_vocab": n_vocab,
        "bos_id": llama_cpp.llama_vocab_bos(vocab),
        "eos_id": llama_cpp.llama_vocab_eos(vocab),
        "add_bos": llama_cpp.llama_vocab_get_add_bos(vocab),
        "end_ids": [t for t in range(n_vocab) if llama_cpp.llama_vocab_is_eog(vocab, t)],
        "pieces_sha256": pieces.hexdigest(),
        "chats": [{"messages": chat, "generation_prompt": g, "text": render(template, chat, g)} for chat in CHATS for g in (True, False)],
        "texts": [{"text": text, "plain": ids(text, special=False), "special": ids(text, special=True)} for text in TEXTS],
    }
    lines = json.dumps(result, ensure_ascii=True).replace('{"text": ', '\n{"text": ').replace('{"messages": ', '\n{"messages": ')
    Path(__file__).with_name("smollm2_tokens.json").write_text(lines + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
