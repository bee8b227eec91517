# Development commands. Each target sets up what it needs; `make` without arguments lists the targets.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LINT_READY := $(VENV)/.ready-lint
DOCS_READY := $(VENV)/.ready-docs
WHEEL_READY := $(VENV)/.ready-wheel
NATIVE := $(VENV)/.ready-native

# Each worker begins with a run of successive tests, so that fixtures of a module are seldom made twice; one that has finished takes over
# half of what another has left, so that no core is idle at the end.
PARALLEL := -n auto --dist worksteal

# Rebuild the environment if its interpreter no longer starts (Python was upgraded, the folder was copied) or differs from PYTHON.
VERSION := -c 'import sys; print(sys.version)'
REBUILD := $(shell test ! -e $(READY) || test "$$('$(or $(PYTHON),$(BIN)/python)' $(VERSION) 2>/dev/null)" = \
	"$$($(BIN)/python $(VERSION) 2>/dev/null || echo none)" || echo rebuild)

.PHONY: help demo test test-arm test-c test-long test-wheel experiments docs wheel lint format clean rebuild

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(NATIVE) ## train a binary MeliusNet on handwritten digits, then export, pack, run and time it
	$(BIN)/python examples/demo.py

test: $(NATIVE) ## run the tests on all cores (ARGS='-k name' is passed to pytest; '-n 0' runs them in one process)
	$(BIN)/python -m pytest tests $(PARALLEL) $(ARGS)

test-long: $(NATIVE) ## run the tests, including the long ones, with more random examples
	BMX_MELIUS_TEST_LONG=1 $(BIN)/python -m pytest tests $(PARALLEL) $(ARGS)

test-c: $(NATIVE) ## build and test the library for C and C++ and bmx-classify (needs CMake; installs it by apt-get if root)
	tools/test_c.sh $(BIN)/python $(ARGS)

test-arm: $(NATIVE) ## test the engine on aarch64 in an emulator, against this machine (installs compiler and emulator where it may)
	$(BIN)/python -W ignore tools/test_arm.py

test-wheel: $(NATIVE) $(WHEEL_READY) ## install the wheel in dist into new environments of all Pythons in PATH, and run it
	@ls dist/*.whl >/dev/null 2>&1 || { echo 'error: there is no wheel in dist: make wheel' >&2; exit 1; }
	BMX_MELIUS_WHEEL="$$(ls dist/*.whl)" $(BIN)/python -m pytest tests/test_wheel.py -rs $(ARGS)

experiments: $(NATIVE) ## run small versions of the paper's studies on handwritten digits (ARGS='--jobs 2' is passed on)
	$(BIN)/python experiments/run.py all --quick $(ARGS)

docs: $(DOCS_READY) ## build the documentation site in build/site; its links and anchors are checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo 'documentation: build/site/index.html'

wheel: $(NATIVE) $(WHEEL_READY) ## build the source distribution and a manylinux wheel into dist, and test the wheel
	@tools/make_wheel.sh $(BIN)/python dist
	@$(MAKE) --no-print-directory test-wheel

lint: $(LINT_READY) ## check style, import contracts and the format of the C++ code
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	git ls-files '*.c' '*.cc' '*.h' | xargs --no-run-if-empty $(BIN)/clang-format --dry-run -Werror

format: $(LINT_READY) ## apply automatic fixes and format the code
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format
	git ls-files '*.c' '*.cc' '*.h' | xargs --no-run-if-empty $(BIN)/clang-format -i

clean: ## remove the environment and all build products
	rm -rf $(VENV) build dist *.egg-info bmx_melius/*.so .pytest_cache .hypothesis .ruff_cache .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

$(READY): requirements.txt setup.py pyproject.toml bmx_melius/_version.py tools/make_venv.sh tools/build_backend.py $(REBUILD)
	@PYTHON='$(PYTHON)' tools/make_venv.sh $(VENV)

# Installing the package also compiles, but hides messages. This target compiles what has changed since or failed.
$(NATIVE): $(READY) tools/native_build.py tools/compile_flags.txt $(shell find bmx_melius/csrc -type f)
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

$(LINT_READY) $(DOCS_READY) $(WHEEL_READY): $(VENV)/.ready-%: requirements-%.txt $(READY)
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --requirement $<
	@touch $@
