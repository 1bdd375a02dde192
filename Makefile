# make demo     generate text on the golden mesh (or on a device, if there is one)
# make test     every test: N150 and N300, then every split of a T3K, then a grid of 8x7; ARGS="..." for a run of your own
# Both make .venv first, from whatever CPython 3.10 or 3.12 is on this machine.

MESH ?= N300
ARGS ?=
PYTHON = .venv/bin/python

.PHONY: demo test clean

demo: .venv/ready
	@$(PYTHON) models/demos/qwen25_7b/demo/demo.py --mesh $(MESH) $(ARGS)

test: .venv/ready
ifdef ARGS
	$(PYTHON) -m pytest $(ARGS)
else
	$(PYTHON) -m pytest
	$(PYTHON) -m pytest --mesh T3K --size tiny tests/pcc tests/splits tests/perf
	$(PYTHON) -m pytest --mesh N300 --size tiny --worker-dispatch tests/pcc/test_attention.py tests/perf
endif

.venv/ready: requirements.txt scripts/find_python.sh
	@python=$$(sh scripts/find_python.sh) && rm -rf .venv && "$$python" -m venv .venv
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

clean:
	rm -rf .venv
