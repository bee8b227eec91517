# Everything a newcomer types. Each target sets up what it needs; `make` alone lists them.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LINT_READY := $(VENV)/.ready-lint

# An environment whose interpreter no longer starts (Python was upgraded, the folder copied) or is not the one asked for is built anew.
VERSION := -c 'import sys; print(sys.version)'
REBUILD := $(shell test ! -e $(READY) || test "$$('$(or $(PYTHON),$(BIN)/python)' $(VERSION) 2>/dev/null)" = \
	"$$($(BIN)/python $(VERSION) 2>/dev/null || echo none)" || echo rebuild)

.PHONY: help demo test test-long lint format clean rebuild

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## train a binary MeliusNet on handwritten digits, export it and classify with it
	$(BIN)/python examples/demo.py

test: $(READY) ## run the tests (ARGS='-k name' is passed to pytest)
	$(BIN)/python -m pytest tests $(ARGS)

test-long: $(READY) ## run the tests with the full counts of the long checks
	BMX_MELIUS_TEST_LONG=1 $(BIN)/python -m pytest tests $(ARGS)

lint: $(LINT_READY) ## check style, the direction of imports and the format of the C++
	$(BIN)/ruff check
	$(BIN)/lint-imports
	git ls-files '*.cc' '*.h' | xargs --no-run-if-empty $(BIN)/clang-format --dry-run -Werror

format: $(LINT_READY) ## mend what the tools can mend
	$(BIN)/ruff check --fix-only
	git ls-files '*.cc' '*.h' | xargs --no-run-if-empty $(BIN)/clang-format -i

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .ruff_cache .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

$(READY): requirements.txt setup.py pyproject.toml bmx_melius/_version.py tools/make_venv.sh $(REBUILD)
	@PYTHON='$(PYTHON)' tools/make_venv.sh $(VENV)

$(LINT_READY): requirements-lint.txt $(READY)
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --requirement requirements-lint.txt
	@touch $@
