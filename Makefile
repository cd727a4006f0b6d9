# One command runs Paceline, one tests it. Needs Python 3.11 or newer with venv, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Tests start some hundred processes: where no bytecode is kept, each compiles all of app/ anew.
unexport PYTHONDONTWRITEBYTECODE

SIDE_BY_SIDE := $(addprefix tests/,advice alerts api benchmarks charts cli client consumer diagnosis e2e \
    engine ingest store synth trace)

# Judged by timing, as are real trainings: beside other tests, neither core is theirs.
ALONE := tests/torch/test_advised.py tests/torch/test_pipeline.py tests/fuzz/test_superlinear.py

# Tests that start no process. Those of tests/consumer are left out: they take a minute by themselves.
QUICK := $(addprefix tests/,advice alerts charts cli/terminal client/recording client/sending diagnosis engine \
    ingest/assembly ingest/wire synth trace test_docs.py test_monitor.py test_package_docs.py test_settings.py)

.PHONY: demo serve test quick coverage lint packages style page-style types imports layout fmt lock clean

# PyPI has Biome for Linux on x86-64 alone.
biome = @if [ -x $(BIN)/biome ]; then $(BIN)/biome $(1); \
    else echo "Biome has no package for this platform: JavaScript and CSS are not checked"; fi

demo: $(VENV)/.run-stamp ## six live simulated jobs, analysed as they run
	@exec $(BIN)/paceline demo

serve: $(VENV)/.run-stamp ## API, consumer, queue and store on this machine
	@exec $(BIN)/paceline serve

test: $(VENV)/.test-stamp ## everything CI checks: lint, types, imports, tests
	@# At the same time, as none of them keeps more than one core busy.
	@$(MAKE) --no-print-directory --output-sync=target -j packages lint
	$(BIN)/python -m pytest $(ALONE) $(PYTEST_ARGS)
	@# Three at a time, since many wait; two files of those that share processes, in their order:
	@# by number of tests those that wait longest would come last, and alone.
	$(BIN)/python -m pytest -n 3 $(SIDE_BY_SIDE) $(PYTEST_ARGS)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --ignore=tests/browser \
	    $(patsubst %,--ignore=%,$(SIDE_BY_SIDE) $(ALONE)) $(PYTEST_ARGS)
	@# In a process of its own: the browser's driver keeps an event loop running.
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/browser $(PYTEST_ARGS)

quick: $(VENV)/.test-stamp ## the inner loop: no server, browser or oracle; mypy stays in memory as a daemon
	@$(MAKE) --no-print-directory --output-sync=target -j style page-style imports layout
	@# 1 are errors in types; above, the daemon crashed, as it may after many files were moved.
	$(BIN)/dmypy run || { code=$$?; [ $$code -gt 1 ] && $(BIN)/mypy; }
	$(BIN)/python -m pytest -q -n 2 -m "not oracle and not long" --hypothesis-profile=quick $(QUICK) $(PYTEST_ARGS)

coverage: $(VENV)/.test-stamp ## which lines the tests run; without the oracle, which would take hours
	@rm -f .coverage .coverage.*
	$(BIN)/python -m coverage run -m pytest --ignore=tests/browser -m "not oracle and not long" $(PYTEST_ARGS)
	$(BIN)/python -m coverage run -m pytest tests/browser $(PYTEST_ARGS)
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
lock:
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile --universal --all-extras --no-emit-package paceline-client --no-header \
	    --no-annotate --no-emit-index-url --no-emit-find-links -q pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) .artefacts .mypy_cache .ruff_cache .pytest_cache .coverage .coverage.*
