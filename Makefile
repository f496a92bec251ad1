# Needs GNU make and Python 3.11 or newer on Linux; nothing else has to be installed first.
# `make demo` shows the thing, `make test` checks it. `make help` lists the rest.
#
# Everything lives in .venv, made by plain pip from hashed locks. Stamp files keep repeated calls quick.

PYTHON ?=
ARGS ?=
ROUNDS ?= 100
SEED ?=
EXAMPLES ?= 5000

CANDIDATES := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)
PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
FROM_LOCK := $(PIP) install --quiet --require-hashes --no-deps
# The build backend comes from the lock too, so that the build fetches nothing.
FROM_HERE := KANDEV_BUILD_PAGE=0 $(PIP) install --quiet --no-deps --no-build-isolation
COMPILE_WITH = --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
	--no-emit-find-links
COMPILE = $(UV) pip compile pyproject.toml $(COMPILE_WITH)
COMPILE_GROUP = $(UV) pip compile $(COMPILE_WITH) --group
UV = $(or $(wildcard .venv/bin/uv),$(shell command -v uv),$(error `make lock` needs uv: python -m pip install uv))

SOURCES := $(shell find src -type f -not -name '*.pyc' 2>/dev/null)
PAGE := src/kandev/page/index.html
PAGE_SOURCES := $(shell find page -type f -not -path '*/node_modules/*' 2>/dev/null)
# The editable install of the tests serves every purpose; the plain one is made only where that is absent.
INSTALLED := $(if $(wildcard .venv/.tests),.venv/.tests,.venv/.plain)

.PHONY: help demo serve page page-test pictures types test mutants fuzz lint locks-name-no-host format bench crash chaos \
	runtimes-test lock real-agents clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo         a session that is killed, resumed, and still remembers: no network, under 15 seconds'
	@echo 'make serve        the server on 127.0.0.1 (ARGS="--port 0")'
	@echo 'make page         builds the page; without Node on the PATH it brings its own'
	@echo 'make page-test    its unit tests, and its tests in Chromium (ARGS="-k resume")'
	@echo 'make pictures     makes the pictures of the README again'
	@echo 'make types        writes the types of the page from the structs of the server'
	@echo 'make test         every test that this machine can run; says what it skipped and why (ARGS="-k resume")'
	@echo 'make mutants      breaks each rule on purpose and expects its tests to turn red (ARGS="TOK-3 --jobs 4")'
	@echo 'make fuzz         hostile input for every reader, with fresh examples (EXAMPLES=20000 of each kind)'
	@echo 'make lint         ruff, mypy, and that no lock names a host'
	@echo 'make format       lets ruff put the sources in order, and writes the tables of docs/recovery.md and docs/agents.md'
	@echo 'make bench        measures, and prints a table with the baseline beside each figure'
	@echo 'make crash        a kill at every failpoint, a start, and what must hold then (minutes)'
	@echo 'make chaos        kills everything at random and looks what held (ROUNDS=1000 SEED=5 ARGS="--runtime docker")'
	@echo 'make runtimes-test  agents in containers of an engine of its own (root, docker.io, openssh-server)'
	@echo 'make real-agents  installs agents that nobody here wrote, and tests with them (npm, 2 GB; ARGS="codex gemini")'
	@echo 'make lock         writes requirements*.lock again (ARGS="--upgrade" for newer versions)'
	@echo 'make clean        removes whatever this file made'

demo: $(INSTALLED)
	.venv/bin/kandev demo $(ARGS)

# Without a page the server still serves everything else.
serve: | .venv/bin/pip
	@$(MAKE) --no-print-directory page || echo 'The page could not be built; the command line serves without it.' >&2
	@$(MAKE) --no-print-directory $(INSTALLED)
	.venv/bin/kandev serve $(ARGS)

page: $(PAGE)

$(PAGE): $(PAGE_SOURCES) | .venv/bin/pip
	@$(PY) page/build.py --has-node || $(FROM_LOCK) -r requirements-node.lock
	@$(PY) page/build.py

page-test: .venv/.tests .venv/.browser page
	@$(PY) page/build.py --test
	$(PY) -m pytest tests/browser $(ARGS)

pictures: .venv/.tests .venv/.browser page
	$(PY) -m pytest tests/browser/pictures.py

types: .venv/.tests
	PYTHONPATH=tests $(PY) -m wire_types --write

test: .venv/.tests
	$(PY) -m pytest $(ARGS)

# Breaks each rule on purpose, in a copy, and expects its tests to see it.
mutants: .venv/.tests
	$(PY) tests/mutants/run.py $(ARGS)

# Fresh examples each time; `make test` runs a fixed few hundred.
fuzz: .venv/.tests
	KANDEV_FUZZ_EXAMPLES=$(EXAMPLES) $(PY) -m pytest tests/fuzz $(ARGS)

lint: .venv/.tests locks-name-no-host
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

# Where packages come from is the business of each machine's own settings.
locks-name-no-host:
	@! grep -nE 'https?://|@ file:|--(extra-)?index-url|--find-links' requirements*.lock
	@! grep -rnE '"resolved"|registry *=' --include=package-lock.json --include=.npmrc --exclude-dir=node_modules \
		--exclude-dir='.[a-z]*' .
	@! grep -nE 'index-url|find-links|\[\[tool\.uv\.index' pyproject.toml

format: .venv/.tests
	$(PY) -m ruff check --fix
	$(PY) -m ruff format
	PYTHONPATH=tests $(PY) -m rule_ids --write
	PYTHONPATH=tests $(PY) -m agent_rows

bench: .venv/.tests
	PYTHONPATH=tests $(PY) -m benchmarks $(ARGS)

# A kill at every failpoint of backend and agentctl, and a start: some minutes.
crash: .venv/.tests
	$(PY) -m pytest tests/crash tests/integration/test_carrying_kills.py $(ARGS)

# A seed is one schedule of faults; without one a fresh one is drawn and printed.
chaos: .venv/.tests
	PYTHONPATH=tests $(PY) -m chaos --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Starts dockerd, and removes whatever that made: containers, mounts, firewall rules.
runtimes-test: .venv/.tests
	$(PY) -m pytest tests/runtimes $(ARGS)

real-agents: .venv/.tests
	PYTHONPATH=tests $(PY) -m real_agents.run $(ARGS)

lock:
	$(COMPILE) --group build $(ARGS) -o requirements.lock
	$(COMPILE) --group dev --all-extras $(ARGS) -o requirements-dev.lock
	$(COMPILE_GROUP) pyproject.toml:node $(ARGS) -o requirements-node.lock
	$(COMPILE_GROUP) pyproject.toml:browser --constraints requirements-dev.lock $(ARGS) -o requirements-browser.lock

clean:
	rm -rf .venv .real-agents page/node_modules src/kandev/page .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.plain: requirements.lock pyproject.toml README.md $(SOURCES) | .venv/bin/pip
	$(FROM_LOCK) -r requirements.lock
	$(FROM_HERE) .
	@touch $@

.venv/.tests: requirements-dev.lock pyproject.toml | .venv/bin/pip
	$(FROM_LOCK) -r requirements-dev.lock
	$(FROM_HERE) --editable .
	$(PIP) check
	@touch $@

.venv/.browser: requirements-browser.lock .venv/.tests
	$(FROM_LOCK) -r requirements-browser.lock
	@touch $@

# pip is the last thing that venv puts in, so its presence says that the environment is whole.
.venv/bin/pip:
	@set -e; \
	for candidate in $(CANDIDATES); do \
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo 'Python 3.11 or newer is needed; none of these is: $(CANDIDATES).' >&2; \
		echo 'Install one, or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)' >&2; exit 1; \
	fi; \
	if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "$$found has no venv module. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; \
	fi; \
	echo "Making .venv with $$found"; "$$found" -m venv .venv
