# `make` alone lists the targets. Everything is installed into .venv, whatever environment is active.

PYTHON ?= python3
FFCV ?= 1
TORCH ?=
TORCH_INDEX ?=
SITE ?=

BIN := .venv/bin
# With SITE=1, PyTorch is the one that PYTHON has.
ifeq ($(SITE),1)
TORCH := $(shell '$(PYTHON)' -c 'import torch; print(torch.__version__.partition("+")[0])' 2>/dev/null)
endif
CONSTRAINTS := -c $(if $(TORCH),.venv/constraints.txt,constraints.txt)
# uv does not see the packages of another environment.
INSTALL := $(BIN)/python .ci/install.py $(if $(SITE),--pip) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(CONSTRAINTS)
# FFCV is compiled with OpenCV's description of itself, or with ours where that is not installed.
OPENCV := pkg-config --exists opencv4 2>/dev/null || export PKG_CONFIG_PATH="$$PKG_CONFIG_PATH:$(CURDIR)/.ci/ffcv-build"
# Written last, so that an interrupted installation is taken up by the next run.
RUNTIME := .venv/runtime.stamp
TOOLS := .venv/tools.stamp
PAGES := .venv/pages.stamp

# What is installed works in one place: its scripts begin with the path, and its link to this code holds it. So a clone
# that was copied or moved is installed anew.
HERE := $(shell grep -lsF -e '!$(CURDIR)/.venv/bin/python' -e '"$(CURDIR)/.venv/bin/python' .venv/bin/pip)
ifndef HERE
.PHONY: $(RUNTIME)
endif

# What `make gpu` measures of the losses; .ci/gpu-run has the same.
MEASURED := sfrik_l3 rbf auh simclr vicreg barlow_twins sigreg --device cuda --forms auto --n 256,2048,8192 --q 2048,8192,32768 --repeats 3

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

gpu: $(TOOLS) ## Hold this machine's GPU against the CPU, and measure losses and trainings there, in some ten minutes
	@$(BIN)/python -m pytest -m gpu tests/gpu; tested=$$?; \
	$(BIN)/regbench cost $(MEASURED) && $(BIN)/python results/speed/training.py && exit $$tested

gpu-bundle: $(TOOLS) ## Pack the same for a machine without a network, into regbench-gpu.tar.gz
	@$(BIN)/python .ci/gpu_bundle.py

lint: $(TOOLS) ## Check style, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: $(PAGES) ## Build the documentation site into site/ (open site/index.html)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: $(TOOLS) ## Format the code and fix what can be fixed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

install: $(RUNTIME) ## Install regbench into .venv (PYTHON=python3.12: with that one; FFCV=0: without FFCV; TORCH=2.11.0: with that PyTorch; SITE=1: with PYTHON's; TORCH_INDEX=URL: from there too)

clean: ## Remove .venv and caches; data and runs stay
	@rm -rf .venv build site .coverage* .mypy_cache .pytest_cache .ruff_cache src/regbench.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# Where FFCV cannot be built regbench works with its torchvision loader, except in CI, which has to test both.
$(RUNTIME): pyproject.toml constraints.txt .ci/install.py .ci/system-packages .ci/ffcv-build/opencv4.pc
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "make: regbench needs Python 3.11 or later and '$(PYTHON)' is not; give another: make PYTHON=/path/to/python3" >&2; exit 1; }
	@[ -z '$(SITE)' ] || '$(PYTHON)' -c 'import sys; sys.exit(sys.prefix != sys.base_prefix)' || { \
		echo "make: SITE=1 cannot see the packages of '$(PYTHON)', as it is of a virtual environment; give the Python that this was made of, or leave SITE out" >&2; exit 1; }
	@[ -z '$(SITE)' ] || '$(PYTHON)' -c 'import sys; sys.exit(tuple(map(int, "$(TORCH)".split(".")[:2])) < (2, 11))' 2>/dev/null || { \
		echo "make: SITE=1 takes the PyTorch of '$(PYTHON)', which has $(or $(TORCH),none), and regbench needs 2.11 or later; leave SITE out" >&2; exit 1; }
	@.ci/system-packages '$(PYTHON)' '$(FFCV)'
	@[ '$(HERE)' ] && $(BIN)/python -m pip --version >/dev/null 2>&1 || { rm -rf .venv && '$(PYTHON)' -m venv $(if $(SITE),--system-site-packages) .venv; }
	@[ -z '$(TORCH)' ] || { grep -vE '^(torch|torchvision|triton|nvidia|cuda|setuptools)' constraints.txt; echo 'torch==$(TORCH)'; } >.venv/constraints.txt
	@echo "Installing regbench with PyTorch (a download of several GB where nothing has cached it)"
	@$(OPENCV); { [ '$(FFCV)' != 0 ] && $(INSTALL) -e '.[ffcv]' && $(BIN)/python -c 'import ffcv'; } || $(INSTALL) -e .
	@[ '$(FFCV)' = 0 ] || $(BIN)/python -c 'import ffcv' 2>/dev/null || { \
		echo "make: FFCV cannot be built here (why: above); images are loaded with torchvision instead" >&2; [ -z "$$CI" ]; }
	@! $(BIN)/python -c 'import ffcv' 2>/dev/null || $(BIN)/python .ci/compile_loader.py
	@touch $@

$(PAGES): $(RUNTIME)
	@echo "Installing what the documentation is built with"
	@$(INSTALL) -q -e '.[docs]'
	@touch $@

$(TOOLS): $(RUNTIME)
	@echo "Installing what tests and checks need"
	@$(INSTALL) -q -e '.[test,dev]'
	@touch $@
