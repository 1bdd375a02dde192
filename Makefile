# make demo     generate text on the golden mesh (or on a device, if there is one)
# make eval     how far each recipe is from Hugging Face's float32; MODEL=directory, hub id or smollm2, RECIPES=bf16,bfp8
# make test     every test, by machine: N300, N150, every split of a T3K, a grid of 8x7; ARGS="..." for a run of your own
# make serve    an OpenAI-compatible server: vLLM with Tenstorrent's plugin, in an environment of its own (.venv-vllm)
# Each makes its environment first, from whatever CPython 3.10 or 3.12 is on this machine.

MESH ?= N300
MODEL ?=
RECIPES ?=
ARGS ?=
PYTHON = .venv/bin/python

.PHONY: demo eval serve test test-7b test-golden test-n300 test-n150 test-t3k test-8x7 clean

demo: .venv/ready
	@$(PYTHON) models/demos/qwen25_7b/demo/demo.py --mesh $(MESH) $(ARGS)

eval: .venv/ready
	@$(PYTHON) -m models.demos.qwen25_7b.evaluation eval --mesh $(MESH) $(if $(MODEL),--model $(MODEL)) \
		$(if $(RECIPES),--recipes $(RECIPES)) $(ARGS)

serve: .venv-vllm/ready
	@MESH_DEVICE=$(MESH) sh scripts/serve.sh .venv-vllm $(or $(MODEL),models/demos/qwen25_7b/reference/small) $(ARGS)

# Three processes at a time, one thread each: on two cores, since tests wait for terminals and for children. What has the 7B's
# dims takes up to 11 GB, so it is one process after the other, and a T3K's 8 GB come late. What one machine shows is not shown
# again on another: a T3K's rows of one and two chips are an N150 and an N300, and a trace is one on any of them.
test: .venv/ready
ifdef ARGS
	$(PYTHON) -m pytest $(ARGS)
else
	@OMP_NUM_THREADS=1 $(MAKE) --no-print-directory -j3 --output-sync=target \
		test-7b test-n300 test-serving test-golden test-t3k-splits test-t3k test-n150 test-8x7
endif

# What the next two name has a process of its own; a new folder of tests is run by this one.
test-n300:
	$(PYTHON) -m pytest --mesh N300 -k "not 7b" --ignore tests/golden_mesh --ignore tests/serving --ignore tests/evaluation

test-serving:
	$(PYTHON) -m pytest --mesh N300 tests/serving tests/evaluation

test-golden:
	$(PYTHON) -m pytest --mesh N300 tests/golden_mesh

test-7b:
	$(PYTHON) -m pytest --mesh N300 -k 7b
	$(PYTHON) -m pytest --mesh N150 -k "7b and not performance and not bf16" tests/pcc tests/splits tests/perf

test-n150:
	$(PYTHON) -m pytest --mesh N150 -k "not 7b" --ignore tests/accuracy/test_small_checkpoint.py \
		tests/pcc tests/accuracy tests/splits tests/perf

test-t3k-splits:
	$(PYTHON) -m pytest --mesh T3K --size tiny --queues 2 -k "not ((tp1 or tp2) and 1024_rows)" tests/splits

test-t3k:
	$(PYTHON) -m pytest --mesh T3K --size tiny --queues 2 \
		-k "not (tp1 or tp2 or 64_steps or tp4 and verifies)" tests/pcc tests/perf

test-8x7:
	$(PYTHON) -m pytest --mesh N300 --size tiny --worker-dispatch -k "not (7b or 64_steps)" tests/pcc/test_attention.py tests/perf

.venv/ready: requirements.txt scripts/find_python.sh
	@python=$$(sh scripts/find_python.sh) && rm -rf .venv && "$$python" -m venv .venv
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

.venv-vllm/ready: scripts/vllm_venv.sh scripts/find_python.sh
	@sh scripts/vllm_venv.sh .venv-vllm "$$(sh scripts/find_python.sh)"
	@touch $@

clean:
	rm -rf .venv .venv-vllm
