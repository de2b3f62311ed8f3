# Two commands set everything up: `make demo` and `make test`. Both need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test suite test-all test-faults fuzz lint bench golden docs dist check-install clean

demo: $(READY)  ## DeComFL against FedAvg on real digits; a table here and a page in runs/demo/report.html
	$(BIN)/fedzero run demo --out runs/demo/decomfl --overwrite
	$(BIN)/fedzero run demo-fedavg --out runs/demo/fedavg --overwrite
	@echo
	$(BIN)/fedzero report runs/demo/decomfl runs/demo/fedavg --out runs/demo/report.html

test: $(READY)  ## style, types and layers beside every test
	@$(MAKE) --no-print-directory -j 2 lint suite

suite: $(READY)  ## every test
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: $(READY) lint  ## every case of every test, those that `make test` leaves out, too; an hour
	$(BIN)/python -m pytest -m "" --hypothesis-profile=random -n 2 --dist worksteal
	$(BIN)/python -m pytest tests/faults -n 0

test-faults: $(READY)  ## a federation whose processes are killed, frozen and lied to; a quarter of an hour
	$(BIN)/python -m pytest tests/faults -n 0
	$(BIN)/python -m pytest -m slow -n 0

CASES   ?= 200000
SECONDS ?= 60
fuzz: $(READY)  ## bytes of chance, guided by coverage where atheris is installed, in every decoder; CASES=…, SECONDS=… a target
	PYTHONPATH=clients/python $(BIN)/python tests/fuzz/fuzz.py --cases $(CASES) --seconds $(SECONDS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)  ## figures beside the baselines they are compared with, measured in the same run
	$(BIN)/python -m bench.cpu.directions
	$(BIN)/python -m bench.network.federation
	$(BIN)/python -m bench.scale.ledger
	$(BIN)/python -m bench.cpu.e1_round
	$(BIN)/python -m bench.cpu.fzoos
	$(BIN)/python -m bench.gpu.directions
	$(BIN)/python -m bench.gpu.llm
	$(BIN)/python -m bench.gpu.completions
	$(BIN)/python -m bench.network.flare
	$(BIN)/python -m bench.network.blind_server
	$(BIN)/python -m bench.scale.ray_scaling
	$(BIN)/python -m bench.scale.page long
	$(BIN)/python -m bench.scale.loggers

golden: $(READY)  ## derive the golden digests of the direction stream again and compare
	$(BIN)/python tests/directions/golden.py --check

docs: $(READY)  ## the documentation as a site, in site/; its reference is made from the code
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(BIN)/python -m mkdocs build --strict

dist: $(READY)  ## wheel and sdist in dist/, looked into, and the wheel installed and run in a fresh environment; minutes
	$(BIN)/python tools/dist.py

check-install: $(READY)  ## whether other platforms and Pythons can install the project; installs nothing
	$(BIN)/python tools/check_install.py

# The marker is newer than what it was made from, so a second call installs nothing.
$(READY): pyproject.toml papers/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e papers
	touch $@

clean:
	rm -rf $(VENV) runs build dist site src/*.egg-info .mypy_cache .ruff_cache .import_linter_cache
