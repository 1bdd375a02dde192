# make demo     generate text on the golden mesh (or on a device, if there is one)
# make check    a minute on two cores: unit tests, every module's PCC on an N300, a demo
# make eval     how far each recipe is from Hugging Face's float32; MODEL=directory, hub id or smollm2, RECIPES=bf16,bfp8,
#               ARGS=--by-position
# make test     every test, by machine: N300, N150, four N150, every split of a T3K, a Galaxy, a grid of 8x7; ARGS="..." runs pytest with these arguments
# make bringup  the first hour on a card: every stage and a report; OUT=DIR, MODEL=real weights, REFERENCE=FILE.refpt,
#               QUESTIONS=FILE.jsonl; SIZE=tiny on a golden mesh
# make serve    an OpenAI-compatible server: vLLM with Tenstorrent's plugin, in a separate environment (.venv-vllm);
#               PLUGIN=DIR: the plugin's source, where GitHub cannot be reached
# make bundle   a folder with the model's code, install.sh and run.sh for tt-model-manager's `tt-model serve`: MESH=N150, N300 or T3K
# Each target makes its environment first, from a CPython 3.10 or 3.12 on this machine. CPYTHON=/path names one.

MESH ?= N300
MODEL ?=
REFERENCE ?=
QUESTIONS ?=
SIZE ?= 7b
RECIPES ?=
ARGS ?=
PYTHON = .venv/bin/python
PIP = $(PYTHON) -m pip install --disable-pip-version-check
# PyPI's torch brings 4 GB of CUDA libraries. https://download.pytorch.org/whl/cpu has one without them.
TORCH_INDEX ?=

# Tests start some 200 Python programs. With this variable each would compile torch and transformers again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: bringup demo check check-unit check-pcc eval serve bundle test test-7b test-golden test-n300 test-n150 test-n150x4 test-t3k test-families test-galaxy test-8x7 test-bringup test-transformers5 clean

demo: .venv/ready
	@$(PYTHON) models/demos/qwen25_7b/demo/demo.py --mesh $(MESH) $(ARGS)

check: .venv/ready
	@echo "units, and PCC of every module, side by side: a dot a test"
	@OMP_NUM_THREADS=1 $(MAKE) --no-print-directory -j2 check-unit check-pcc
	@$(PYTHON) models/demos/qwen25_7b/demo/demo.py --backend golden --prompt "What is the capital of Japan?"

check-unit:
	@$(PYTHON) -m pytest -o addopts="-q -p no:cacheprovider" --mesh N300 tests/unit tests/text
	@echo "unit tests: done"

check-pcc:
	@$(PYTHON) -m pytest -o addopts="-q -p no:cacheprovider" --mesh N300 --size tiny tests/pcc
	@echo "PCC of every module: done"

eval: .venv/ready
	@$(PYTHON) -m models.demos.qwen25_7b.evaluation eval --mesh $(MESH) $(if $(MODEL),--model $(MODEL)) \
		$(if $(RECIPES),--recipes $(RECIPES)) $(ARGS)

bringup: .venv/ready
	@$(PYTHON) -m models.demos.qwen25_7b.bringup --mesh $(MESH) --out $(or $(OUT),bringup-$(MESH)) --size $(SIZE) \
		$(if $(MODEL),--model $(MODEL)) $(if $(REFERENCE),--reference $(REFERENCE)) \
		$(if $(QUESTIONS),--questions $(QUESTIONS)) $(ARGS)

serve:
	@sh scripts/vllm_venv.sh .venv-vllm scripts/find_python.sh
	@exec env MESH_DEVICE=$(MESH) .venv-vllm/bin/python scripts/serve.py \
		$(or $(MODEL),models/demos/qwen25_7b/reference/small) $(ARGS)

bundle: .venv/ready
	@PYTHONPATH=. $(PYTHON) scripts/make_bundle.py --mesh $(MESH) $(if $(MODEL),--model $(MODEL)) $(ARGS)

# Three processes run at a time, with one thread each: tests also wait for terminals and child processes.
# Tests at the 7B's dims take up to 11 GB, so they are one target, and the T3K's 8 GB come late.
# No machine repeats another's tests: a T3K's rows of one and two chips are an N150 and an N300. Markers are in pyproject.toml.
test: .venv/ready
ifdef ARGS
	$(PYTHON) -m pytest $(ARGS)
else
	@OMP_NUM_THREADS=1 $(MAKE) --no-print-directory -j3 --output-sync=target \
		test-7b test-families test-n300 test-serving test-golden test-t3k-splits test-t3k test-n150 test-n150x4 test-8x7 test-bringup test-transformers5 test-galaxy
endif

# The folders that this target ignores have their own target below. A new folder of tests runs here.
test-n300:
	$(PYTHON) -m pytest --mesh N300 -m "not seven_b" --ignore tests/engine --ignore tests/vllm --ignore tests/evaluation

test-serving:
	$(PYTHON) -m pytest --mesh N300 -m "not seven_b" tests/engine tests/vllm tests/evaluation

test-golden:
	$(PYTHON) -m pytest golden_mesh --golden N300

# The 7B's modules that N300 runs alone, and N150 inside a layer or at the small checkpoint's dims.
ALONE = attention mlp rms_norm rotary embedding transformer long_context

test-7b:
	$(PYTHON) -m pytest --mesh N300 -m seven_b -k "not (bf16 and (test_attention or test_mlp))"
	$(PYTHON) -m pytest --mesh N150 -m "seven_b and not repeat" -k "not decoder_layer or performance" \
		$(ALONE:%=--ignore tests/pcc/test_%.py) tests/pcc tests/splits tests/perf

# What differs in Qwen3 and Llama 3.
test-families:
	$(PYTHON) -m pytest --mesh N300 --family qwen3 --family llama $(FAMILY) -k "tiny or (decoder_layer and bfp8)"

FAMILY = $(addprefix tests/pcc/test_,attention.py decoder_layer.py transformer.py)

test-n150:
	$(PYTHON) -m pytest --mesh N150 -m "not (seven_b or repeat)" tests/pcc tests/accuracy tests/splits tests/perf

test-t3k-splits:
	$(PYTHON) -m pytest --mesh T3K --size tiny --queues 2 -m "not repeat" tests/splits

# Rows of four chips without a ring. N150x4 runs every module on a ring of four.
LINE = tests/pcc/test_decoder_layer.py tests/pcc/test_lm_head.py tests/pcc/test_sampler.py

test-t3k:
	$(PYTHON) -m pytest --mesh T3K --tp 8 --size tiny --queues 2 -m "not repeat" tests/pcc tests/perf
	$(PYTHON) -m pytest --mesh T3K --tp 4 --size tiny --queues 2 -m "not repeat" $(LINE) tests/perf

# Text from each of four replicas, the 7B's DRAM and the modeled step.
test-galaxy:
	$(PYTHON) -m pytest --mesh GALAXY --queues 2 -m galaxy tests/splits tests/perf

# A ring of four chips, and four replicas.
test-n150x4:
	$(PYTHON) -m pytest --mesh N150x4 --size tiny --queues 2 -m "not repeat" tests/pcc tests/splits
	$(PYTHON) -m pytest --mesh N150x4 --tp 1 --size tiny --queues 2 tests/splits/test_replicas.py

test-8x7:
	$(PYTHON) -m pytest --mesh N300 --size tiny --worker-dispatch -m "not (seven_b or repeat)" tests/pcc/test_attention.py tests/perf

# The stages that run no tests of ours.
test-bringup:
	$(PYTHON) -m models.demos.qwen25_7b.bringup --mesh N300 --backend golden --size tiny --out $$(mktemp -d) --only machine,ops,speed

# What reads a checkpoint's files, and answers of the small one. .venv has transformers 4.57.
test-transformers5: .venv-transformers5/ready
	.venv-transformers5/bin/python -m pytest --mesh N300 tests/weights/test_checkpoints_as_saved.py \
		tests/accuracy/test_small_checkpoint.py::test_greedy_tokens_of_a_batch_equal_hugging_faces \
		tests/text $(addprefix tests/unit/test_,config.py rope.py checkpoint.py)
	.venv-transformers5/bin/python models/demos/qwen25_7b/demo/demo.py --backend golden --prompt "What is the capital of Japan?"

# All of .venv, and transformers 5 before it: 80 MB and 10 seconds.
.venv-transformers5/ready: .venv/ready
	@$(PYTHON) -m venv --clear --without-pip .venv-transformers5
	@echo "import site; site.addsitedir('$$($(PYTHON) -c $(SITE))')" > "$$(.venv-transformers5/bin/python -c $(SITE))/venv.pth"
	.venv-transformers5/bin/python -m pip install --disable-pip-version-check --no-warn-conflicts --no-compile --quiet 'transformers==5.24.*' 'numpy<2'
	@touch $@

SITE = 'import sysconfig; print(sysconfig.get_path("purelib"))'

# An existing environment is kept. pip adds missing packages, so a stopped installation resumes. --no-compile:
# compiling every package takes 90 seconds, and Python compiles the modules that it imports.
.venv/ready: requirements.txt pyproject.toml golden_mesh/pyproject.toml scripts/find_python.sh
	@sh scripts/make_venv.sh .venv
	$(if $(TORCH_INDEX),$(PIP) --index-url $(TORCH_INDEX) torch==2.14.1)
	$(PIP) --no-compile -r requirements.txt
	@touch $@

clean:
	rm -rf .venv .venv-transformers5 .venv-vllm
