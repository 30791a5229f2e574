# make app   set up once, serve the page on 127.0.0.1        make test      set up once, run the tests
# make quick some tests, in 90 s                            make test-long  tests of make test on more cases
# make check lint, types                                     make gpu-test  PYTHON=python3: the tests that need a GPU
#
# make gpu-test GPU_TESTS=tests/gpu/test_build.py runs one file of them.
#
# With PYTHON=... that interpreter is used as it is and nothing is installed: a CUDA torch is never replaced.
SHELL := /bin/bash
PORT ?= 8501
ARGS ?=
GPU_TESTS ?= tests/gpu
QUICK := tests/core tests/docs tests/bench/test_cells.py tests/build/test_cache.py tests/drive/test_session.py \
         tests/emulator tests/export/test_text.py tests/page/test_report.py

ifdef PYTHON
  PY := $(PYTHON)
  READY :=
  TEST_READY :=
else
  PY := .venv/bin/python
  READY := .venv/ready
  TEST_READY := .venv/ready .venv/test-ready
endif

.PHONY: app test test-long failed quick check gpu-test figures clean

app: $(READY)
	$(PY) -m streamlit run app.py --server.port $(PORT)

# Started in the background, a test would ignore Ctrl-C and hang-ups, and so would all that it starts; the tests send them.
# PYTHONDONTWRITEBYTECODE forbids Python to keep what it has compiled: then each of the many processes that the tests start
# compiles the workbench again. Those that are confined cannot keep anything, so COMPILED does it before.
SIGNALS := env -u PYTHONDONTWRITEBYTECODE --default-signal=INT,HUP
COMPILED = $(PY) -m compileall -q workbench

# PASSIVE: OpenMP's threads sleep between calls; by default they spin, on the cores that the other worker needs.
# Status 5: ARGS chose none of the tests that run alone. They are looked for in their own files: to collect all takes longer.
test: $(TEST_READY)
	$(COMPILED)
	alone=0; $(SIGNALS) $(PY) -m pytest $$(grep -rlw mark.alone tests --include=*.py) -m "alone and not long" $(ARGS) || alone=$$?; \
	$(SIGNALS) OMP_WAIT_POLICY=PASSIVE $(PY) -m pytest tests --ignore=tests/gpu -m "not alone and not long" -n 2 --dist loadgroup $(ARGS) \
	&& test $$alone = 0 -o $$alone = 5

test-long: $(TEST_READY)
	$(COMPILED)
	$(SIGNALS) OMP_WAIT_POLICY=PASSIVE $(PY) -m pytest tests --ignore=tests/gpu -m long -n 2 --dist loadgroup $(ARGS)

# What failed in the last run, once more and one at a time. Status 5, an error: nothing had failed.
failed: $(TEST_READY)
	$(SIGNALS) OMP_WAIT_POLICY=PASSIVE $(PY) -m pytest tests --ignore=tests/gpu --last-failed --last-failed-no-failures none $(ARGS)

quick: $(TEST_READY)
	$(COMPILED)
	$(SIGNALS) OMP_WAIT_POLICY=PASSIVE $(PY) -m pytest $(QUICK) -q -n 2 --dist loadgroup $(ARGS)

check: $(TEST_READY)
	$(PY) -m ruff check .
	$(PY) -m mypy

gpu-test:
	$(PY) -m pytest $(GPU_TESTS) -v -p no:cacheprovider $(ARGS)

figures: $(READY)
	$(PY) tools/figures.py $(ARGS)
	$(PY) tools/figures.py --page

.venv/ready: requirements.txt constraints.txt
	python3 -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; this one is %d.%d." % sys.version_info[:2])'
	test -x .venv/bin/python || python3 -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -c constraints.txt
	touch $@

.venv/test-ready: requirements-test.txt .venv/ready
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-test.txt -c constraints.txt
	touch $@

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache
