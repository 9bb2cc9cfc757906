# `make help` lists the targets. Everything happens in .venv; nothing needs root.

TARGET ?= examples/rms_norm.py::RMSNorm
# Neighbours stay together, as they share what they use. One worker more than cores: many tests wait for a child process.
PYTEST_ARGS ?= -n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --maxprocesses 8 --dist worksteal
# Where `make test-editors` keeps code-server and Chromium's driver.
EDITORS ?= /opt/kernel-lsp-editors

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Reference tensors are small: one thread each is faster than threads that wait for each other.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install demo test test-editors screenshots attacks ledger ledger-update lint format examples corpus clean

help:  ## list the targets
	@echo "kernel-lsp: optimize PyTorch to CUDA, with or without a GPU"
	@echo
	@sed -n 's/^\([a-z-]*\):.*##/  make \1#/p' Makefile | awk -F'#' '{ printf "%-21s%s\n", $$1, $$2 }'
	@echo
	@echo "  variables: PYTHON=python3.12  TORCH=2.13.0  TARGET=model.py::Block  PYTEST_ARGS='-k plan -x'"

install: $(INSTALLED)  ## create .venv and install everything into it (once)
	@echo "Installed in $(VENV). Next: make demo, or $(BIN)/kernel-lsp --help"

demo: $(INSTALLED)  ## optimize TARGET on the CPU and end with a report
	@$(BIN)/python -m kernel_lsp optimize $(TARGET) --device cpu

test: $(INSTALLED)  ## run the tests
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

test-editors: $(INSTALLED)  ## drive real editors: VS Code in Chromium, Neovim, Helix, Emacs
	@sh scripts/install_editors.sh $(EDITORS)
	@cd vscode-client && npm ci --ignore-scripts --no-audit --no-fund && npm run typecheck && npm test && npm run package
	@KERNEL_LSP_EDITORS=$(abspath $(EDITORS)) node --test --test-concurrency=1 --test-reporter=spec tests/editors_vscode/*.test.mjs
	@KERNEL_LSP_EDITORS=$(abspath $(EDITORS)) $(BIN)/python -m pytest -q -rs -n0 tests/editors tests/editors_nvim tests/editors_emacs tests/editors_helix

screenshots: $(INSTALLED)  ## take the pictures of docs/editors anew, in VS Code
	@sh scripts/install_editors.sh $(EDITORS)
	@cd vscode-client && npm ci --ignore-scripts --no-audit --no-fund && npm run package
	@KERNEL_LSP_EDITORS=$(abspath $(EDITORS)) sh scripts/take_screenshots.sh

attacks: $(INSTALLED)  ## check the kernels that cheat and those that are only unusual, and print both rates
	@$(BIN)/python scripts/run_corpora.py

ledger: $(INSTALLED)  ## compare the cases proposed for each of these kernels, or VERDICTS=FILE, with the record
	@$(BIN)/python scripts/ledger.py $(if $(VERDICTS),--verdicts $(VERDICTS))

ledger-update: $(INSTALLED)  ## the same, and accept what differs
	@$(BIN)/python scripts/ledger.py --write $(if $(VERDICTS),--verdicts $(VERDICTS))

lint: $(INSTALLED)  ## check style, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(INSTALLED)  ## apply the format and the fixes that are safe
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

examples: $(INSTALLED)  ## optimize every example on the CPU, forward and backward, and print a table
	@$(BIN)/python scripts/optimize_all.py examples

corpus: $(INSTALLED)  ## optimize the KernelBench-style files on the CPU and print the rate
	@$(BIN)/python scripts/optimize_all.py corpus

clean:  ## remove .venv, caches and runs
	rm -rf $(VENV) .kernel-lsp .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml scripts/install.sh
	@sh scripts/install.sh $(VENV)
	@touch $@
