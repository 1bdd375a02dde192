# make demo     generate text on the golden mesh (or on a device, if there is one)
# make test     every test
# Both make .venv first, from whatever CPython 3.10 or 3.12 is on this machine.

MESH ?= N300
ARGS ?=
PYTHON = .venv/bin/python

.PHONY: demo test clean

demo: .venv/ready
	@$(PYTHON) models/demos/qwen25_7b/demo/demo.py --mesh $(MESH) $(ARGS)

test: .venv/ready
	$(PYTHON) -m pytest $(ARGS)

.venv/ready: requirements.txt scripts/find_python.sh
	@python=$$(sh scripts/find_python.sh) && rm -rf .venv && "$$python" -m venv .venv
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

clean:
	rm -rf .venv
