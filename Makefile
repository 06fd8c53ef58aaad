# Every target makes the environment that it needs; a second call finds it in place.
PYTHON ?= python3
# On a machine with CUDA: make EXTRAS=gpu,offline,train,eval,dev …
EXTRAS ?= cpu,offline,train,eval,dev
BIN := .venv/bin

.PHONY: demo test lint bench proto env

demo: .venv/ready
	$(BIN)/rerank demo --work build/demo

test: lint
	$(BIN)/python -m pytest

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# make bench REQUESTS=requests.jsonl: on windows of real passages. Some twenty minutes on two cores.
bench: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python scripts/bench_engine.py $(if $(REQUESTS),--requests $(REQUESTS)) --out bench.json --plot-to docs/bench.png

proto: .venv/ready
	PYTHON=$(BIN)/python scripts/gen_proto.sh

env: .venv/ready

# Byte-compiling all of 2 GB of packages takes minutes; importing what is used once leaves that much compiled.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info < (3, 14) or sys.exit("Python 3.11 to 3.13 needed, this is %d.%d; set PYTHON=" % sys.version_info[:2])'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check --no-compile --progress-bar off -q -c constraints.txt -e '.[$(EXTRAS)]'
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c 'import rerank.commands.demo, rerank.service.server, rerank.retrieval.jvm as j; j.pyserini_module("pyserini.search.lucene")'
	touch $@
