# make demo     generate text on the golden mesh (or on a device, if there is one)
# make check    a minute on two cores: ruff, unit tests, every module's PCC on an N300, a demo
# make eval     how far each recipe is from Hugging Face's float32; MODEL=directory, hub id or smollm2, RECIPES=bf16,bfp8,
#               ARGS=--by-position; of a 7B it says how long it takes, goes on after an interruption, writes a .refpt file
# make test     every test, by machine: N300, N150, four N150, every split of a T3K, a Galaxy, a grid of 8x7 (tests/all.py);
#               make test-golden, test-7b, ... runs one of its jobs, and ARGS="..." pytest with these arguments
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
define fill
@$(if $(TORCH_INDEX),sh scripts/fill_venv.sh $1 --index-url $(TORCH_INDEX) torch==2.14.1)
@sh scripts/fill_venv.sh $1 -r requirements.txt
endef
# PyPI's torch brings 4 GB of CUDA libraries. https://download.pytorch.org/whl/cpu has one without them.
TORCH_INDEX ?=

# A variable as a word of the shell, and as an option where it is set: a space, a quote or a $ is a character like others.
unexport MESH MODEL REFERENCE QUESTIONS OUT SIZE RECIPES
quoted = '$(subst ','\'',$(value $1))'
option = $(if $(value $2),--$1=$(call quoted,$2))

# Tests start Python programs. With this variable each would compile torch and transformers again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: bringup demo check check-ruff check-unit check-pcc eval serve bundle test test-transformers5 test-python310 clean

demo: .venv/ready
	@$(PYTHON) models/demos/qwen25_7b/demo/demo.py $(call option,mesh,MESH) $(ARGS)

check: .venv/ready
	@echo "ruff, units, and PCC of every module, side by side: a dot a test"
	@OMP_NUM_THREADS=1 $(MAKE) --no-print-directory -j2 check-ruff check-unit check-pcc
	@$(PYTHON) models/demos/qwen25_7b/demo/demo.py --backend golden --prompt "What is the capital of Japan?"

check-ruff:
	@$(PYTHON) -m ruff check --quiet . && $(PYTHON) -m ruff format --check --quiet .
	@echo "ruff: done"

check-unit:
	@$(PYTHON) -m pytest -o addopts="-q -p no:cacheprovider" --mesh N300 tests/unit tests/text tests/weights/test_checkpoint.py
	@echo "unit tests: done"

check-pcc:
	@$(PYTHON) -m pytest -o addopts="-q -p no:cacheprovider" --mesh N300 --size tiny tests/pcc
	@echo "PCC of every module: done"

eval: .venv/ready
	@$(PYTHON) -m qwen25_7b_lab.evaluation eval $(call option,mesh,MESH) $(call option,model,MODEL) \
		$(call option,recipes,RECIPES) $(ARGS)
	@$(if $(filter-out smollm2,$(value MODEL)),,$(PYTHON) -m qwen25_7b_lab.evaluation readiness $(call option,mesh,MESH) \
		$(call option,model,MODEL) $(call option,recipes,RECIPES))

bringup: .venv/ready
	@$(PYTHON) -m qwen25_7b_lab.bringup $(call option,mesh,MESH) $(call option,size,SIZE) \
		$(or $(call option,out,OUT),--out=bringup-$(call quoted,MESH)) $(call option,model,MODEL) \
		$(call option,reference,REFERENCE) $(call option,questions,QUESTIONS) $(ARGS)

serve:
	@sh scripts/vllm_venv.sh .venv-vllm scripts/find_python.sh
	@exec env MESH_DEVICE=$(call quoted,MESH) .venv-vllm/bin/python scripts/serve.py \
		$(if $(value MODEL),$(call quoted,MODEL),models/demos/qwen25_7b/reference/small) $(ARGS)

bundle: .venv/ready
	@PYTHONPATH=. $(PYTHON) scripts/make_bundle.py $(call option,mesh,MESH) $(call option,model,MODEL) $(ARGS)

test: .venv/ready
	$(PYTHON) $(if $(ARGS),-m pytest $(ARGS),tests/all.py)

# One of its jobs: test-golden, test-7b, test-t3k ...
test-%: .venv/ready
	@$(PYTHON) tests/all.py $*

# What reads a checkpoint's files, and answers of the small one. .venv has transformers 4.57.
test-transformers5: .venv-transformers5/ready
	.venv-transformers5/bin/python -m pytest --mesh N300 $(addprefix tests/weights/test_,checkpoints_as_saved.py checkpoint.py) \
		tests/splits/test_replicas.py::test_all_replicas_together_give_hugging_faces_text \
		tests/text $(addprefix tests/unit/test_,config.py rope.py)
	.venv-transformers5/bin/python models/demos/qwen25_7b/demo/demo.py --backend golden --prompt "What is the capital of Japan?"

# All of .venv, and transformers 5 before it: 80 MB and 10 seconds.
.venv-transformers5/ready: .venv/ready
	@sh scripts/remove_venv.sh .venv-transformers5
	@$(PYTHON) -m venv --without-pip .venv-transformers5 && mkdir .venv-transformers5/steps
	@echo "import site; site.addsitedir('$$($(PYTHON) -c $(SITE))')" > "$$(.venv-transformers5/bin/python -c $(SITE))/venv.pth"
	.venv-transformers5/bin/python -m pip install --disable-pip-version-check --no-warn-conflicts --no-compile --quiet 'transformers==5.24.*' 'numpy<2'
	@touch $@

# Units and a demo with CPython 3.10, where this machine has one beside .venv's.
test-python310: .venv-python310/ready
	.venv-python310/bin/python -m pytest -o addopts="-q -p no:cacheprovider" --mesh N300 tests/unit tests/text tests/weights/test_checkpoint.py tests/commands/test_command.py
	.venv-python310/bin/python models/demos/qwen25_7b/demo/demo.py --backend golden --prompt "What is the capital of Japan?"

# uv links from its cache what .venv has, too: 3 GB are new.
.venv-python310/ready: .venv/ready
	@sh scripts/remove_venv.sh .venv-python310
	@"$$(sh scripts/find_python.sh 3.10)" -m venv --without-pip .venv-python310 && mkdir .venv-python310/steps
	$(call fill,.venv-python310)
	@touch $@

SITE = 'import sysconfig; print(sysconfig.get_path("purelib"))'

# An existing environment is kept. Missing packages are added, so a stopped installation resumes.
.venv/ready: requirements.txt pyproject.toml golden_mesh/pyproject.toml scripts/find_python.sh
	@sh scripts/make_venv.sh .venv
	-@$(PYTHON) -m pip install --disable-pip-version-check --no-compile --quiet uv==0.13.9
	$(call fill,.venv)
	@touch $@

clean:
	@sh scripts/remove_venv.sh .venv .venv-transformers5 .venv-python310 .venv-vllm
