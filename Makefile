# One command per habit. Each installs what it needs into .venv, from nothing but Python 3.10 or newer.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help demo test coverage test-browser pictures browser chromium mariadb pgbouncer lint format soak bench api docs dist clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "bloomguard needs Python 3.10 or newer; say which with PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

# One stamp for each set of extras: made anew when pyproject.toml changes.
.venv/%.installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$*]"
	@touch $@

demo: .venv/demo.installed ## attack the example site: unguarded, with null caching, guarded at the lookup, the route and the door
	$(BIN)/python example_project/manage.py demo

SUITE := -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not slow"

test: .venv/test.installed ## the whole suite
	$(BIN)/python $(SUITE)

coverage: .venv/test.installed ## the same, with coverage: it takes twice as long
	$(BIN)/python $(SUITE) --cov --cov-report=term --cov-fail-under=95

AXE := tests/browser/node_modules/axe-core/axe.min.js

# The admin's markup differs between these. Django 6 needs Python 3.12: the first of the PATH or of pyenv is taken.
BROWSER_DJANGOS := 5.2 6.1
NEWER := python3.14 python3.13 python3.12 $(wildcard $(HOME)/.pyenv/versions/3.1[2-9]*/bin/python)
PYTHON_6 = $(firstword $(foreach python,$(PYTHON) $(NEWER),$(shell \
  $(python) -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && echo $(python))))

test-browser: browser ## the admin page on Django 5.2 and 6.1, in a real Chromium
	for django in $(BROWSER_DJANGOS); do \
	  BLOOMGUARD_TEST_BROWSER=required .venv-django$$django/bin/python -m pytest tests/browser || exit 1; \
	done

pictures: browser ## store how the admin page looks now: for test-browser and the docs
	for django in $(BROWSER_DJANGOS); do \
	  BLOOMGUARD_RENEW_PICTURES=1 BLOOMGUARD_TEST_BROWSER=required .venv-django$$django/bin/python -m pytest tests/browser || exit 1; \
	done

browser: $(BROWSER_DJANGOS:%=.venv-django%/installed) $(AXE) | chromium

.venv-django%/installed: pyproject.toml
	$(if $(PYTHON_6),,$(error Django 6 needs Python 3.12 or newer: say which with PYTHON=python3.12))
	$(PYTHON_6) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[browser]" "django~=$*.0"
	@touch $@

$(AXE): tests/browser/package.json
	cd tests/browser && npm install --silent --no-audit --no-fund --no-package-lock
	@touch $@

# Debian's, where there is none yet and we may install it.
chromium:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update --quiet --quiet && \
	  DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends chromium >/dev/null; \
	} || { echo "install Chromium first: as root on Debian, apt-get install chromium"; exit 1; }

# The same of MariaDB's server, and Django's driver of it, which is built here. Tests that find none are skipped.
mariadb: .venv/test.installed ## a MariaDB server and its driver, for the tests on MariaDB
	@PATH="$$PATH:/usr/sbin"; command -v mariadbd >/dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update --quiet --quiet && \
	  DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends \
	    mariadb-server libmariadb-dev pkg-config gcc libc6-dev >/dev/null; \
	} || { echo "install MariaDB first: as root on Debian, apt-get install mariadb-server libmariadb-dev"; exit 1; }
	@$(BIN)/python -c "import MySQLdb" 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check "mysqlclient>=2.2"

pgbouncer: ## a PgBouncer, for the tests behind a pooler
	@PATH="$$PATH:/usr/sbin"; command -v pgbouncer >/dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update --quiet --quiet && \
	  DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends pgbouncer >/dev/null; \
	} || { echo "install PgBouncer first: as root on Debian, apt-get install pgbouncer"; exit 1; }

soak: .venv/test.installed ## the long proofs
	$(BIN)/python -m pytest -m slow --timeout=7200

lint: .venv/lint.installed ## style, types, layers, spelling, forgotten migrations
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell
	$(BIN)/codespell --dictionary .codespell-old-words bloomguard docs *.md
	$(BIN)/python example_project/manage.py makemigrations --check --dry-run

format: .venv/lint.installed ## put the source in order
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

bench: bench-filters bench-rebuild bench-verify bench-requests bench-redis bench-figures bench-admin bench-sync bench-demo bench-comparison ## every benchmark

bench-%: .venv/bench.installed ## one benchmark: bench-filters, bench-rebuild, bench-verify, bench-requests, bench-redis, bench-figures, bench-admin, bench-sync, bench-demo, bench-comparison
	$(BIN)/python -m bench.$*

api: .venv/docs.installed ## docs/api.md, from the docstrings
	$(BIN)/python docs/make_api.py

docs: .venv/docs.installed ## these pages as HTML, in docs/_build; a warning is an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -b html docs docs/_build

dist: .venv/dist.installed ## wheel and sdist in dist/, checked, and the suite on the wheel
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m nox -s wheel

clean: ## remove everything that the other commands made
	rm -rf .venv .venv-* .nox tests/browser/node_modules .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis dist docs/_build bench/data demo-report*
	rm -rf example_project/db.sqlite3* example_project/.bloomguard
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
