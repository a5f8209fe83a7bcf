"""Chat templates: llama.cpp's rendering of SmolLM2's, Jinja features that templates use, and hostile ones."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import gguf
import pytest

from backends.errors import ModelError
from backends.model.gguf import GGUFFile
from backends.model.template import ChatTemplate
from backends.model.tokenizer import Tokenizer
from tests.tiny import finish, write_tiny_llama

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "smollm2_tokens.json").read_text())
USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> ChatTemplate:
    file = GGUFFile.open(smollm2_path)
    template = ChatTemplate.from_gguf(file, Tokenizer.from_gguf(file))
    assert template is not None
    return template


@pytest.mark.parametrize("chat", GOLDEN["chats"])
def test_same_prompt_as_llama_cpp(smollm2: ChatTemplate, chat: dict[str, Any]) -> None:
    messages = [{"role": role, "content": content} for role, content in chat["messages"]]
    assert smollm2.render(messages, add_generation_prompt=chat["generation_prompt"]) == chat["text"]


def test_smollm2_adds_its_system_message(smollm2: ChatTemplate) -> None:
    assert smollm2.render(USER) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_file_without_template(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    finish(writer)
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(write_tiny_llama(tmp_path / "t.gguf")))
    assert ChatTemplate.from_gguf(GGUFFile.open(tmp_path / "m.gguf"), tokenizer) is None


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>hi</s>"),
        ("{% for m in messages %}\n  {{ m['role'] }}\n{% endfor %}\n", "  user\n"),  # trim_blocks and lstrip_blocks
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{{ {'a': 'é<b>'} | tojson }}", '{"a": "é<b>"}'),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{% if enable_thinking is defined and enable_thinking is false %}no{% endif %}", "no"),
        ("{% if tools %}tools{% endif %}{{ undefined_name }}", ""),
        ("{{ messages[0].content.split('i')[0] }}{{ '-' * 3 }}{{ 2 ** 10 }}", "h---1024"),
        ("{{ '2' if strftime_now('%Y') | int > 2000 }}", "2"),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
    ],
)
def test_features(source: str, wanted: str) -> None:
    assert ChatTemplate(source, "<s>", "</s>").render(USER, enable_thinking=False) == wanted


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "not valid"),
        ("{{ a", r"not valid: .*\(line 1\)"),
        ("{% unknown %}", "not valid: .*unknown"),
        ("{{ 1 | nofilter }}", "nofilter"),
        ("{{ raise_exception('roles must\nalternate') }}", "the chat template failed: roles must alternate"),
        ("{{ messages[5].content.x }}", "failed: "),
        ("{{ 1 + 'a' }}", "failed: TypeError"),
        ("{{ 1 / 0 }}", "failed: ZeroDivisionError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% include 'x' %}", "failed: "),
        ("{{ messages.append(1) }}", "unsafe|SecurityError|not safely callable"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ raise_exception.__globals__['x'] }}", "unsafe"),
        ("{{ '{0.__class__.__mro__}'.format(1) }}", "unsafe"),
        ("{% for i in range(999999999) %}{% endfor %}", "too big"),
        ("{{ 'a' * 9999999999 }}", "too big"),
        ("{{ 9999999999 * [1] }}", "too big"),
        ("{{ 9 ** 999999999 }}", "too big"),
        ("{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}", "more than .* characters"),
        ("{{ lipsum(n=99999999) }}", "undefined"),
        ("{% for a in b %}" * 30 + "{% endfor %}" * 30, "not valid: "),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "not valid: "),
    ],
)
def test_failing_and_hostile_templates(source: str, message: str) -> None:
    began = time.perf_counter()
    with pytest.raises(ModelError, match=message) as caught:
        ChatTemplate(source, name="m.gguf").render(USER)
    assert str(caught.value).startswith("m.gguf: the chat template ") and "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert time.perf_counter() - began < 5


def test_messages_are_not_changed() -> None:
    messages = [{"role": "user", "content": "hi", "list": [1]}]
    with pytest.raises(ModelError):
        ChatTemplate("{{ messages[0]['list'].append(2) }}").render(messages)
    assert messages == [{"role": "user", "content": "hi", "list": [1]}]


def test_system_role_from_special_text_in_content(tmp_path: Path) -> None:
    """A user's text is rendered as it is; only the rendered whole is read with special texts."""
    file = GGUFFile.open(write_tiny_llama(tmp_path / "t.gguf", n_vocab=300))
    tokenizer = Tokenizer.from_gguf(file)
    template = ChatTemplate.from_gguf(file, tokenizer)
    assert template is not None
    ids = tokenizer.encode(template.render(USER), special=True)
    assert ids[0] == 1 and ids.count(2) == 1 and tokenizer.decode(ids) == "user\nhi\nassistant\n"
