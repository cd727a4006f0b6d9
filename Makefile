# One command runs Paceline, one tests it. Needs Python 3.11 or newer with venv, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Tests start some hundred processes: where no bytecode is kept, each compiles all of app/ anew.
unexport PYTHONDONTWRITEBYTECODE

# What was checked once is not checked again, also not in another clone of this user's.
export MYPY_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/paceline/mypy

# One run: groups that share processes, the longest first (tests/schedule.py). Three workers, as many tests wait; two at
# night, as most tests then start processes of their own.
PYTEST := $(BIN)/python -m pytest --no-loadscope-reorder

# Judged by timing, as are real trainings: beside other tests, neither core is theirs. And what makes networks: a
# browser fails its requests when one comes or goes.
ALONE := tests/torch/test_advised.py tests/torch/test_pipeline.py tests/fuzz/test_superlinear.py \
    tests/ingest/redis/test_network_split.py

# Tests that start no process. Those of tests/consumer are left out: they take half a minute by themselves.
QUICK := $(addprefix tests/,advice alerts charts cli/terminal client/recording client/sending diagnosis engine \
    ingest/assembly ingest/wire synth trace test_docs.py test_monitor.py test_package_docs.py test_settings.py)

.PHONY: demo serve test nightly costs quick coverage lint packages style page-style types imports layout fmt picture lock clean

# PyPI has Biome for Linux on x86-64 alone.
biome = @if [ -x $(BIN)/biome ]; then $(BIN)/biome $(1); \
    else echo "Biome has no package for this platform: JavaScript and CSS are not checked"; fi

demo: $(VENV)/.run-stamp ## six live simulated jobs, analysed as they run
	@exec $(BIN)/paceline demo

serve: $(VENV)/.run-stamp ## API, consumer, queue and store on this machine
	@exec $(BIN)/paceline serve

test: $(VENV)/.test-stamp ## what protects a change, and what CI runs: lint, types, imports, tests
	@# At the same time, as none of them keeps more than one core busy.
	@$(MAKE) --no-print-directory --output-sync=target -j packages lint
	$(PYTEST) -n 3 --whole test $(PYTEST_ARGS)

nightly: $(VENV)/.test-stamp ## the rest: long faults, fuzzers, trainings, every look and database, all examples
	@$(MAKE) --no-print-directory packages
	@# All of it, whatever fails: one red test at the beginning is not to hide the night.
	@status=0; set -x; \
	$(BIN)/python -m pytest -m nightly $(ALONE) $(PYTEST_ARGS) || status=1; \
	$(PYTEST) -n 2 -m "nightly or hypothesis" --hypothesis-profile=nightly --whole night \
	    $(patsubst %,--ignore=%,$(ALONE)) $(PYTEST_ARGS) || status=1; \
	exit $$status

costs: ## .ci/test_costs.tsv from the last whole runs: seconds of CPU and of waiting by file, and at night
	$(BIN)/python -m tests.costs

quick: $(VENV)/.test-stamp ## the inner loop: no server, browser or oracle; mypy stays in memory as a daemon
	@$(MAKE) --no-print-directory --output-sync=target -j style page-style imports layout
	@# 1 are errors in types; above, the daemon crashed, as it may after many files were moved.
	$(BIN)/dmypy run || { code=$$?; [ $$code -gt 1 ] && $(BIN)/mypy; }
	$(BIN)/python -m pytest -q -n 2 --no-loadscope-reorder -m "not oracle and not nightly" --hypothesis-profile=quick $(QUICK) $(PYTEST_ARGS)

coverage: $(VENV)/.test-stamp ## which lines `make test` runs; without the oracle, which would take hours
	@rm -f .coverage .coverage.*
	$(BIN)/python -m coverage run -m pytest -m "not oracle and not nightly" $(PYTEST_ARGS)
	@$(BIN)/python -m coverage combine -q && $(BIN)/python -m coverage report --skip-covered --skip-empty

lint: style page-style types imports layout ## without the tests

packages: $(VENV)/.test-stamp
	@.ci/system-packages

style: $(VENV)/.test-stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

page-style: $(VENV)/.test-stamp ## JavaScript and CSS, by biome.json; lines of at most 120 characters
	$(call biome,ci --error-on-warnings --colors=off)
	@! LC_ALL=C.UTF-8 grep -rnE --include='*.js' --include='*.css' --include='*.html' '.{121,}' frontend

types: $(VENV)/.test-stamp
	$(BIN)/mypy

imports: $(VENV)/.test-stamp
	$(BIN)/lint-imports

layout: $(VENV)/.test-stamp ## sizes, names and import circles
	$(BIN)/python .ci/layout.py

fmt: $(VENV)/.test-stamp
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(call biome,check --write)

$(VENV)/.run-stamp: requirements.lock pyproject.toml client/pyproject.toml
	@PYTHON="$(PYTHON)" .ci/bootstrap $(VENV) run

$(VENV)/.test-stamp: requirements.lock pyproject.toml client/pyproject.toml .ci/bootstrap
	@PYTHON="$(PYTHON)" .ci/bootstrap $(VENV) test

# The lock names versions and no addresses, so it works with any package index.
picture: $(VENV)/.test-stamp ## README's picture, of today's page
	$(BIN)/python -m tests.browser.readme_picture

lock:
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile --universal --all-extras --no-emit-package paceline-client --no-header \
	    --no-annotate --no-emit-index-url --no-emit-find-links -q pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) .artefacts .mypy_cache .ruff_cache .pytest_cache .coverage .coverage.*
