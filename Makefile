# Development commands. Each target sets up what it needs; `make` without arguments lists the targets.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NATIVE := $(VENV)/.ready-native

# Checking style needs neither MXNet nor a compiler: it has an environment to itself, which is made in seconds, of any Python with wheels of Grimp.
LINT := .venv-lint
LINT_PYTHON = $(or $(PYTHON),$(shell for python in python3 python3.12 python3.11 python3.10 python3.9 python3.8; do \
	$$python -c 'import sys; sys.exit(not (3, 8) <= sys.version_info < (3, 13))' 2>/dev/null && echo $$python && break; done),python3)

# Commands that write to an environment or compile the package wait for the commands of another `make` (tools/make_venv.sh).
locked = $(and $(shell command -v flock),flock $(1).lock)

# Programs and libraries that a target needs, with the packages of Debian: installed if they are missing and this is root, otherwise named.
install = $(BIN)/python -W ignore tools/commands.py
CHROMIUM := chromium=chromium chromedriver=chromium-driver

# Each worker begins with a run of successive tests, so that fixtures of a module are seldom made twice; one that has finished takes over
# half of what another has left, so that no core is idle at the end.
PARALLEL := -n auto --dist worksteal

# Rebuild an environment if its interpreter no longer starts (Python was upgraded, the folder was copied) or differs from PYTHON.
VERSION := -c 'import sys; print(sys.version)'
rebuild = $(shell test ! -e $(1)/.ready || test "$$('$(or $(PYTHON),$(1)/bin/python)' $(VERSION) 2>/dev/null)" = \
	"$$($(1)/bin/python $(VERSION) 2>/dev/null || echo none)" || echo rebuild)

.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*\#\# .*/\1/p' Makefile) rebuild

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(NATIVE) ## train a binary MeliusNet on handwritten digits, then export, pack, run and time it
	$(BIN)/python examples/demo.py

test: $(NATIVE) ## run the tests on all cores (ARGS='-k name' is passed to pytest; '-n 0' runs them in one process)
	$(BIN)/python -m pytest tests $(PARALLEL) $(ARGS)

test-long: $(NATIVE) ## run the tests, including long tests, with more random examples
	BMX_MELIUS_TEST_LONG=1 $(BIN)/python -m pytest tests $(PARALLEL) $(ARGS)

test-c: $(NATIVE) ## build and test the library for C and C++ and bmx-classify (needs CMake; installs it by apt-get if root)
	@$(install) gcc=gcc g++=g++ cmake=cmake make=make pkg-config=pkg-config libjpeg=libjpeg-dev libpng=libpng-dev
	BMX_MELIUS_TEST_C=1 $(BIN)/python -m pytest --timeout 1200 tests/native/test_c_library.py tests/native/test_bmx_classify.py \
		tests/images/test_image_kinds.py::test_bmx_classify_reads_jpeg_and_png_by_the_rule_and_names_the_other_formats $(ARGS)

test-arm: $(NATIVE) ## test the engine and bmx-classify on aarch64 in an emulator, against this machine (ARGS='peaks int8': some of the parts of ARGS=--list; installs compiler and emulator where it may)
	$(BIN)/python -W ignore tools/test_arm.py $(ARGS)

test-mcu: $(NATIVE) ## run exported C on Cortex-M and RISC-V processors in an emulator, against the engine (ARGS='tokens': some of the networks of ARGS=--list; installs what it needs where it may)
	$(BIN)/python -W ignore tools/test_mcu.py $(ARGS)

test-scale: $(NATIVE) $(VENV)/.ready-scale ## test `bmx-melius score` on local clusters of Dask and Ray whose workers are killed
	$(BIN)/python -m pytest tests/scoring $(PARALLEL) $(ARGS)

test-extras: ## install each extra into a new environment, with the versions that pip selects, and use it once (ARGS='score onnx')
	$(or $(PYTHON),python3) tools/test_extras.py $(ARGS)

test-service: $(NATIVE) $(VENV)/.ready-service-tests ## test the service, its page in Chromium and a load (installs Chromium by apt-get if root)
	@$(install) $(CHROMIUM)
	BMX_MELIUS_TEST_SERVICE=1 $(BIN)/python -m pytest tests/serving $(ARGS)

load-test: $(NATIVE) $(VENV)/.ready-service-tests ## measure the service at rising load and against hostile clients, and write docs/serving-load.md (some minutes)
	$(BIN)/python benchmarks/serving_load.py $(ARGS)

test-wasm: $(NATIVE) ## test the engine in WebAssembly by Node.js, against this machine, and the page of `make wasm` in Chromium (ARGS='page': some of the parts of ARGS=--list)
	$(BIN)/python -W ignore tools/test_wasm.py $(ARGS)

test-wheel: $(NATIVE) $(VENV)/.ready-wheel ## install the wheel in dist into new environments of all Pythons in PATH, and run it
	@ls dist/*_$$(uname -m).whl >/dev/null 2>&1 || { echo 'error: there is no wheel in dist: make wheel' >&2; exit 1; }
	BMX_MELIUS_WHEEL="$$(ls dist/*_$$(uname -m).whl)" $(BIN)/python -m pytest tests/packaging/test_wheel.py -rs $(ARGS)

fuzz: $(NATIVE) $(VENV)/.ready-fuzz ## fuzz the readers of files for 8 minutes (ARGS='--minutes 60 packed'; installs clang by apt-get if root)
	$(BIN)/python -W ignore tools/run_fuzzers.py $(ARGS)

check-weights: $(NATIVE) ## evaluate the networks that ship on all test images of their cards (downloads Fashion-MNIST, 31 MB)
	$(BIN)/python -W ignore benchmarks/trained_networks.py $(ARGS)

experiments: $(NATIVE) ## run small versions of the paper's studies on handwritten digits (ARGS='--jobs 2' is passed on)
	$(BIN)/python experiments/run.py all --quick $(ARGS)

operations: $(READY) ## write the C++ header and the tables of the documentation that are made from the table of operations
	$(BIN)/python -W ignore tools/make_operations.py

docs: $(VENV)/.ready-docs ## build the documentation site in build/site; its links and anchors are checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo 'documentation: build/site/index.html'

test-site: docs $(VENV)/.ready-service-tests ## test the documentation site in Chromium: its search and its width (installs Chromium by apt-get if root)
	@$(install) $(CHROMIUM)
	BMX_MELIUS_TEST_SITE=build/site $(BIN)/python -m pytest tests/docs/test_site.py $(ARGS)

wasm: $(NATIVE) ## build the engine for WebAssembly, and a page that classifies drawn digits, in build/web (installs Emscripten where it may)
	$(BIN)/python -W ignore tools/make_wasm.py build/web

wheel: $(NATIVE) $(VENV)/.ready-wheel ## build the source distribution and a manylinux wheel into dist, and test the wheel
	@tools/make_wheel.sh $(BIN)/python dist
	@$(MAKE) --no-print-directory test-wheel

wheel-arm: $(NATIVE) $(VENV)/.ready-wheel ## cross-compile a manylinux wheel for aarch64 into dist, and run it in an emulator (needs Debian)
	@$(BIN)/python -W ignore tools/test_wheel_arm.py --install-tools
	@tools/make_wheel.sh $(BIN)/python dist aarch64
	@$(BIN)/python -W ignore tools/test_wheel_arm.py dist

lint: $(LINT)/.ready ## check style, import contracts, types and the format of the C++ code (needs neither MXNet nor a compiler)
	$(LINT)/bin/ruff check
	$(LINT)/bin/ruff format --check
	PYTHONPATH=. $(LINT)/bin/lint-imports
	$(LINT)/bin/mypy
	git ls-files '*.c' '*.cc' '*.h' | xargs --no-run-if-empty $(LINT)/bin/clang-format --dry-run -Werror

format: $(LINT)/.ready ## apply automatic fixes and format the code
	$(LINT)/bin/ruff check --fix-only
	$(LINT)/bin/ruff format
	git ls-files '*.c' '*.cc' '*.h' | xargs --no-run-if-empty $(LINT)/bin/clang-format -i

pins: $(VENV)/.ready-pins ## write requirements/*.txt from setup.py and pyproject.toml (ARGS=--upgrade looks for newer versions)
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tools/pin_requirements.py $(ARGS)

clean: ## remove the environment and all build products
	rm -rf $(VENV) $(VENV).lock $(LINT) $(LINT).lock build dist *.egg-info bmx_melius/*.so .pytest_cache .hypothesis .ruff_cache .import_linter_cache .mypy_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

$(READY): requirements/tests.txt setup.py pyproject.toml bmx_melius/_version.py tools/make_venv.sh tools/build_backend.py $(call rebuild,$(VENV))
	@PYTHON='$(PYTHON)' tools/make_venv.sh $(VENV) $(filter-out rebuild,$^)

# Installing the package also compiles, but hides messages. This target compiles what has changed since or failed.
$(NATIVE): $(READY) tools/native_build.py tools/compile_flags.txt $(shell find bmx_melius/csrc -type f)
	@$(call locked,$(VENV)) $(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

$(LINT)/.ready: requirements/lint.txt $(call rebuild,$(LINT))
	@echo 'Setting up $(LINT), once ...' >&2
	@test -L $(LINT) || rm -f $@
	@$(call locked,$(LINT)) sh -ec 'test ! -e $@ || exit 0; \
		test ! -L $(LINT) || { echo "error: $(LINT) is a link to another environment: remove it" >&2; exit 1; }; \
		$(LINT_PYTHON) -m venv --clear $(LINT); \
		$(LINT)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --requirement $<; \
		touch $@'

$(addprefix $(VENV)/.ready-,docs fuzz pins scale service-tests wheel): $(VENV)/.ready-%: requirements/%.txt $(READY)
	@$(call locked,$(VENV)) $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --requirement $<
	@touch $@
