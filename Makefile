# `make` alone lists the targets. Everything is installed into .venv, whatever environment is active.

PYTHON ?= python3
FFCV ?= 1
TORCH ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CONSTRAINTS := -c $(if $(TORCH),.venv/constraints.txt,constraints.txt)
# Python compiles what is imported, once. To compile all that is installed would add a quarter to the installation or
# more. Where Python keeps nothing that it compiles, as in many containers, each start would take four seconds longer.
COMPILE := $(if $(PYTHONDONTWRITEBYTECODE),--compile,--no-compile)
INSTALL := $(PIP) install $(COMPILE) $(CONSTRAINTS)
# FFCV is compiled with OpenCV's description of itself, or with ours where that is not installed.
OPENCV := pkg-config --exists opencv4 2>/dev/null || export PKG_CONFIG_PATH="$$PKG_CONFIG_PATH:$(CURDIR)/.ci/ffcv-build"
# Written last, so that an interrupted installation is taken up by the next run.
RUNTIME := .venv/runtime.stamp
TOOLS := .venv/tools.stamp
SITE := .venv/site.stamp

# What is installed works in one place: its scripts begin with the path, and its link to this code holds it. So a clone
# that was copied or moved is installed anew.
HERE := $(shell grep -lsF -e '!$(CURDIR)/.venv/bin/python' -e '"$(CURDIR)/.venv/bin/python' .venv/bin/pip)
ifndef HERE
.PHONY: $(RUNTIME)
endif

.DEFAULT_GOAL := help
.PHONY: benchmark clean docs format gpu gpu-bundle help install lint test test-all test-slow test-slurm

benchmark: $(RUNTIME) ## Train the SFRIK paper's methods on generated scenes, print the leaderboard, write the report
	@$(BIN)/regbench sweep quickstart --report

test: $(TOOLS) ## Run the tests, but for the slow ones and those that need Slurm or a GPU
	@$(BIN)/python -m pytest -m "not slow and not slurm and not gpu" --numprocesses auto --maxprocesses 4 --dist loadfile

test-slow: $(TOOLS) ## Run the slow tests that need no Slurm
	@$(BIN)/python -m pytest -m "slow and not slurm and not exhaustive" --numprocesses auto --maxprocesses 4 --dist loadfile

test-slurm: $(TOOLS) ## Run the tests that need Slurm, on a throw-away cluster (skipped where it is not installed), but for the long storm
	@$(BIN)/python -m pytest -m "slurm and not slow"

test-all: $(TOOLS) ## Run all tests, the slow ones and those that need Slurm too, and print their coverage
	@$(BIN)/python -m pytest --cov

gpu: $(TOOLS) ## Hold this machine's GPU against the CPU, measure it and write docs/results/gpu.md, in some ten minutes
	@$(BIN)/python -m pytest -m gpu tests/gpu; tested=$$?; $(BIN)/python -m regbench.instruments.gpu --out docs/results && exit $$tested

gpu-bundle: $(TOOLS) ## Pack the same for a machine without a network, into regbench-gpu.tar.gz
	@$(BIN)/python .ci/gpu_bundle.py

lint: $(TOOLS) ## Check style, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: $(SITE) ## Build the documentation site into site/ (open site/index.html)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: $(TOOLS) ## Format the code and fix what can be fixed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

install: $(RUNTIME) ## Install regbench into .venv (PYTHON=python3.12: with that one; FFCV=0: without FFCV; TORCH=2.11.0: with that PyTorch)

clean: ## Remove .venv and caches; data and runs stay
	@rm -rf .venv build site .coverage* .mypy_cache .pytest_cache .ruff_cache src/regbench.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# FFCV is compiled while PyTorch is unpacked. Where that fails regbench works with its torchvision loader, except in CI,
# which has to test both.
$(RUNTIME): pyproject.toml constraints.txt .ci/system-packages .ci/ffcv-build/opencv4.pc
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "make: regbench needs Python 3.11 or later and '$(PYTHON)' is not; give another: make PYTHON=/path/to/python3" >&2; exit 1; }
	@.ci/system-packages '$(PYTHON)' '$(FFCV)'
	@[ '$(HERE)' ] && $(BIN)/python -m pip --version >/dev/null 2>&1 || { rm -rf .venv && '$(PYTHON)' -m venv .venv; }
	@[ -z '$(TORCH)' ] || { grep -vE '^(torch|torchvision|triton|nvidia|cuda|setuptools)' constraints.txt; echo 'torch==$(TORCH)'; } >.venv/constraints.txt
	@echo "Installing PyTorch (a download of several GB where pip has not cached it)"
	@[ '$(FFCV)' = 0 ] || { $(OPENCV); $(PIP) wheel $(CONSTRAINTS) -q --no-deps -w .venv/wheels ffcv >.venv/ffcv.log 2>&1 & }; \
		$(INSTALL) torch torchvision; status=$$?; wait; exit $$status
	@echo "Installing regbench and its other dependencies"
	@$(INSTALL) -q -e .
	@[ '$(FFCV)' = 0 ] || { \
		echo "Installing FFCV"; \
		$(OPENCV); $(INSTALL) -q --find-links .venv/wheels -e '.[ffcv]' >.venv/ffcv.log 2>&1 && $(BIN)/python -c 'import ffcv' 2>>.venv/ffcv.log; } || { \
		echo "make: FFCV cannot be built here (why: .venv/ffcv.log); images are loaded with torchvision instead" >&2; [ -z "$$CI" ]; }
	@touch $@

$(SITE): $(RUNTIME)
	@echo "Installing what the documentation is built with"
	@$(INSTALL) -q -e '.[docs]'
	@touch $@

$(TOOLS): $(RUNTIME)
	@echo "Installing what tests and checks need"
	@$(INSTALL) -q -e '.[test,dev]'
	@touch $@
