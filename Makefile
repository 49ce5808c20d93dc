# `make demo` and `make test` install everything they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# All installations, including build environments, use the pinned versions.
export PIP_CONSTRAINT := $(CURDIR)/requirements/constraints.txt
export PIP_BUILD_CONSTRAINT := $(PIP_CONSTRAINT)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo reproduce quick test test-slow test-torch lint docs dist release-check clean

help:
	@echo "make demo       compare every method on handwritten digits, 10 paired runs, and write a report"
	@echo "make quick      format check, lint, type check and a selection of the tests: under two minutes on two cores"
	@echo "make reproduce STUDY=dose-1000  repeat a study of the replication in the directory reproduced"
	@echo "make test       format check, lint, type check and tests"
	@echo "make test-slow  the statistical tests at full size"
	@echo "make test-torch TORCH=2.15.0  the core's tests with another version of torch (5 GB)"
	@echo "make docs       build the documentation in the directory site; a broken link fails"
	@echo "make dist       build and check the source archive and this machine's wheel, in the directory dist"
	@echo "make release-check  check that everything is ready for a release: docs/releasing.md"
	@echo "make clean      remove the virtual environment and caches"

$(VENV)/.installed: pyproject.toml CMakeLists.txt requirements/constraints.txt $(wildcard src/contdrop/kernels/native/*.cpp src/contdrop/kernels/native/*.h)
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'make: expected Python 3.11 or later for the pinned versions of requirements/constraints.txt, got ' + sys.version.split()[0] + '; give another by PYTHON=python3.11')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable ".[dev]"
	@touch $@

demo: $(VENV)/.installed
	@$(BIN)/contdrop run digits-mlp --store demo.db
	@$(BIN)/contdrop report --store demo.db --out demo-report

# Repeat one study of results/PROTOCOL.md in the directory reproduced: data, runs (resumed if interrupted), archive and page.
# RUNS and METHODS make it smaller. The published weights for cifar10-nin-head cannot be downloaded; the command says where
# to put them.
DATA = $(or $(if $(filter replication,$(STUDY)),mnist fashion-mnist cifar-10),$(if $(findstring fashion,$(STUDY)),fashion-mnist),$(if $(findstring cifar,$(STUDY)),cifar-10),mnist)

reproduce: $(VENV)/.installed
	@test -n "$(STUDY)" || { echo "make reproduce: expected STUDY=name; run contdrop list for the names" >&2; exit 2; }
	@mkdir -p reproduced
	for name in $(DATA); do $(BIN)/contdrop data get $$name || exit; done
	$(BIN)/contdrop run $(STUDY) --store reproduced/$(STUDY).db $(if $(RUNS),--runs $(RUNS)) $(if $(METHODS),--methods $(METHODS))
	$(BIN)/contdrop export --store reproduced/$(STUDY).db --archive reproduced/$(STUDY).jsonl.gz --small
	$(BIN)/contdrop report --store reproduced/$(STUDY).db --out reproduced/$(STUDY)-report

lint: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# --strict: broken links, pages outside the menu and unknown names fail.
docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "docs: site/index.html"

# A quick selection; `make test` runs all. Tests that start processes are left out, because each takes seconds to import torch.
QUICK := $(addprefix tests/, project/test_house.py test_files.py test_law_values.py functional/test_elementwise.py test_nn.py kernels/test_ops.py lab/study/test_methods.py lab/study/test_plan.py lab/report/test_tables.py lab/analysis/test_verdict.py)

quick: lint
	$(BIN)/pytest -m "not slow" -k "not processes" --quiet --numprocesses auto --dist loadfile $(QUICK)

test: lint
	$(BIN)/pytest -m "not slow" --numprocesses auto --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/.installed
	$(BIN)/pytest -m slow

# The core's tests with another version of torch, in a separate environment. The package index has the CUDA build, which
# works without a GPU, so this needs about 5 GB and is not for continuous integration. The lab is tested with the pinned version
# only: its packages are not installed here, and tests/conftest.py skips the tests that need them.
TORCH ?= 2.15.0
OTHER ?= .venv-torch-$(TORCH)

test-torch:
	$(PYTHON) -m venv $(OTHER)
	PIP_CONSTRAINT= PIP_BUILD_CONSTRAINT= $(OTHER)/bin/pip install --quiet "torch==$(TORCH)" numpy scipy pytest pytest-xdist hypothesis
	PIP_CONSTRAINT= PIP_BUILD_CONSTRAINT= $(OTHER)/bin/pip install --quiet --editable .
	$(OTHER)/bin/pytest -m "not slow" --numprocesses auto --dist loadfile tests

# On Linux, auditwheel checks that the wheel runs on older systems, and renames it accordingly.
dist: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable ".[release]"
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	test ! -x $(BIN)/auditwheel || { PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist dist/*-linux_*.whl && rm dist/*-linux_*.whl; }
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

release-check: lint docs dist
	$(BIN)/pytest -q tests/project/test_habits.py tests/project/test_docs.py tests/replication/claims/test_claims.py tests/replication/claims/test_archives.py
	$(BIN)/pytest -q --no-skips tests/project/test_packaging.py tests/kernels/test_neon.py tools/test_release.py
	$(BIN)/python tools/release.py

clean:
	rm -rf $(VENV) .venv-torch-* demo.db* demo-report site dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
