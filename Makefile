# Two commands do everything on a fresh machine:
#   make demo    sets up, packs real photographs, reads them back in training order, shows the result
#   make test    sets up, runs all checks and tests
# Others: make test-quick · lint · format · bench · bench-quick · clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= demo-out
# Neither prompts nor telemetry nor noise from anything that is started here.
export DO_NOT_TRACK = 1
export PREFECT_SERVER_ANALYTICS_ENABLED = false
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help demo test test-quick lint format bench bench-quick clean
help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -4

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or later is needed; '$(PYTHON)' is none. Say which: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing python3-venv (as root, with apt-get)"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv; \
	  else echo "Python's venv module is missing. On Debian or Ubuntu: sudo apt-get install python3-venv"; exit 1; fi; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Setting up $(VENV) for the demo (Prefect, PyTorch, photographs): some minutes on a first run"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Setting up $(VENV) with everything that the tests need: some minutes on a first run"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.demo

# For the tests alone; without them those of the pages and of PostgreSQL are skipped, and say so.
$(VENV)/.system: | $(BIN)/python
	@missing=""; command -v chromium >/dev/null || missing="chromium"; \
	ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || missing="$$missing postgresql"; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing $$missing for the tests (as root, with apt-get)"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; } \
	    >/dev/null || echo "$$missing could not be installed: some tests are skipped"; \
	else echo "Some tests are skipped without $$missing. On Debian: sudo apt-get install $$missing"; fi
	@touch $@

demo: $(VENV)/.demo
	@$(BIN)/shardflow demo $(OUT)

# The tests of one file stay together: those that need a server share it. Real servers, browsers and kills on a machine that
# stalls: a test that fails is tried once more, and the summary names it. One that is named there often is a defect.
test: lint $(VENV)/.system
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --reruns 1 --reruns-delay 1 -r R

test-quick: $(VENV)/.dev
	$(BIN)/python -m pytest -m 'not slow'

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py all

bench-quick: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py all --quick --minutes 3.5

clean:
	rm -rf $(VENV) $(OUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info build
