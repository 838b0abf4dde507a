# Everything a developer or a newcomer runs. Each target sets up its own environment first.
#
#   PYTHON        interpreter to build the environment with (3.11 or newer)
#   VENV          where the environment lives
#   TORCH_INDEX   another package index for PyTorch, e.g. the one with its CPU or CUDA builds;
#                 empty: the index pip is configured with
#   GPU_PYTHON    interpreter with torch and transformers, for the targets that need a GPU
#   GPU_RESULTS   where those write what they found
#   SEEDS         where `make seeds` keeps its models and runs (an hour of a core per model, half an hour per table)
#   TABLE         which recipe it runs: `table` or `questions` of jobs/recipes/shapes_*.yaml
#   VLLM_VENV     where the environment of `make test-vllm` lives: vLLM's pins are not ours
#   PROCESSES     processes that share out the tests (one more than processors: many wait for others)

PYTHON      ?= python3
VENV        ?= .venv
VLLM_VENV   ?= .venv-vllm
TORCH_INDEX ?=
SEEDS       ?= runs/seeds
TABLE       ?= table
PROCESSES   ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))

BIN   := $(VENV)/bin
READY := $(VENV)/.ready
# A machine with a GPU often has its own build of torch: no environment is set up for it.
GPU_PYTHON  ?= $(if $(wildcard $(READY)),$(BIN)/python,$(PYTHON))
GPU_RESULTS ?= tests/gpu/results
PIP   := $(BIN)/python -m pip --disable-pip-version-check install --constraint infra/constraints.txt
# Files of tests go to the processes in the order of tests/conftest.py: the slowest ones first.
# Compiled files are kept even where the environment says otherwise: compiling tests is two fifths of
# collecting them, in every process, and the programs that tests start import the same sources.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(PROCESSES) --maxprocesses 8 \
          --dist loadgroup --no-loadscope-reorder -rR

# Python versions that pyproject.toml promises.
VERSIONS := $(shell sed -n 's/.*Python :: \(3\.[0-9]*\)".*/\1/p' pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-system test-kernels test-vllm test-all test-gpu chaos mutations fuzz seeds lint types format methods \
        bench bench-compare ui resolve wheel clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

setup: $(READY)  ## Create the virtual environment (once; everything else does it by itself)

# An index of PyTorch has few versions of other packages: what torch needs comes with the rest.
# The marker is written last, so an interrupted set-up is taken up again and a finished one reused.
$(READY): infra/constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "tango-video needs Python 3.11 or newer; set PYTHON=/path/to/python3"; exit 1; }
	@rm -f $(READY)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); }
	@echo "setting up $(VENV) (a few minutes, once)"
	@$(PIP) --quiet torch $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX))
	@$(PIP) --quiet --editable '.[dev]'
	@touch $(READY)

demo: $(READY)  ## Sweep five methods over generated clips and print the table
	$(BIN)/tango sweep jobs/recipes/shapes_demo.yaml --limit 40

test: $(READY)  ## Run the test suite on the CPU, without its slow tests
	@$(PYTEST) -m 'not gpu and not slow and not system'

test-slow: $(READY)  ## Run the slow tests only
	@$(PYTEST) -m 'slow and not system and not gpu'

test-system: $(READY)  ## Run the tests that need the Debian packages of infra/debian.txt
	@infra/debian_packages.sh check
	@$(PYTEST) -m 'system and not gpu'

# PyTorch's and oneDNN's kernels, limited to those of older processors; one process of tests each.
KERNELS      ?= ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ATEN_CPU_CAPABILITY=avx512 \
                ONEDNN_MAX_CPU_ISA=SSE41 ONEDNN_MAX_CPU_ISA=AVX2 ONEDNN_MAX_CPU_ISA=AVX512_CORE OMP_NUM_THREADS=1
KERNEL_TESTS ?= tests/tango_core/models tests/tango_core/ops tests/tango_core/compressors tests/tango_core/device tests/tango_core/metrics

test-kernels: $(READY)  ## Run the numeric tests with the kernels of other processors
	@failed=0; for setting in $(KERNELS); do \
		echo "== $$setting"; env $$setting $(PYTEST) -q -m 'not gpu and not slow and not system' $(KERNEL_TESTS) \
			|| failed=1; \
	done; exit $$failed

# The list is complete, so that nothing is resolved: torchvision asks for a torch for CUDA, and
# tests/vllm/site says how it is imported beside one for CPUs.
$(VLLM_VENV)/.ready: infra/constraints-vllm.txt
	@rm -f $@
	@$(PYTHON) -m venv --clear $(VLLM_VENV)
	@echo "setting up $(VLLM_VENV) (3 GB, once)"
	@$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --requirement $<
	@touch $@

test-vllm: $(VLLM_VENV)/.ready  ## Compare the engine vllm with ours, in an environment with vLLM for CPUs
	@PYTHONPATH=. $(VLLM_VENV)/bin/python -m pytest -q tests/vllm \
		tests/tango_core/models/test_processors_of_transformers.py  # has torchvision there

test-all: $(READY)  ## Run the whole test suite on the CPU
	@infra/debian_packages.sh check
	@$(PYTEST) -m 'not gpu'

chaos: $(READY)  ## Run N (10000) jobs in a simulated world from seed SEED (0); what fails as Python
	@$(BIN)/python -m tests.chaos.simulator --seed $(or $(SEED),0) --number $(or $(N),10000)

mutations: $(READY)  ## Bring 28 known faults back one at a time and look for each of them
	@$(BIN)/python -m tests.chaos.mutations.hunt

fuzz: $(READY)  ## Read N (5000) damaged files from seed SEED (0): videos, caches, answers
	@$(BIN)/python -m tests.chaos.fuzz.run --seed $(or $(SEED),0) --number $(or $(N),5000)

lint: $(READY) types  ## Check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)  ## Check types only
	@$(BIN)/mypy

format: $(READY)  ## Rewrite the code in the project's style
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

methods: $(READY)  ## Record the sources and outputs of shipped methods, after one was edited
	@$(BIN)/python tests/fixtures/method_outputs.py

# Trainings and tables are independent of each other: `make --jobs 2 seeds` uses two cores for them.
.SECONDARY: $(SEEDS)/model1/model.safetensors $(SEEDS)/model2/model.safetensors
seeds: $(foreach seed,0 1 2,$(SEEDS)/$(TABLE)$(seed)/finished)  ## Train two more seeds of the embedded model; every method on all three

$(SEEDS)/model%/model.safetensors: | $(READY)
	@$(BIN)/tango train-tiny --seed $* --output $(@D) --resume

$(SEEDS)/$(TABLE)0/finished: jobs/recipes/shapes_$(TABLE).yaml | $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/tango sweep $< --output $(@D) --continue
	@touch $@

$(SEEDS)/$(TABLE)%/finished: jobs/recipes/shapes_$(TABLE).yaml $(SEEDS)/model%/model.safetensors
	@OMP_NUM_THREADS=1 $(BIN)/tango sweep $< --set model.path=$(SEEDS)/model$* --output $(@D) --continue
	@touch $@

bench: $(READY)  ## Measure speed against references: one table of ratios with limits
	@OMP_NUM_THREADS=1 $(BIN)/python tests/perf/bench.py
	@OMP_NUM_THREADS=1 $(BIN)/python tests/perf/bench_questions.py

bench-compare: $(READY)  ## List what is slower by more than 10 % in commit B (HEAD) than in A (main)
	@$(BIN)/python tests/perf/compare.py $(or $(A),main) $(or $(B),HEAD)

test-gpu:  ## Compare the GPU with the CPU and measure a 7B model; needs torch and transformers alone
	@$(GPU_PYTHON) -m tests.gpu.check --out $(GPU_RESULTS)

ui: $(READY)  ## Open the MLflow UI on the runs under ./runs
	@$(BIN)/mlflow ui --backend-store-uri sqlite:///runs/mlflow.db --port $(or $(PORT),5000)

resolve: $(READY)  ## Check that the exact versions have wheels for every Python we promise
	@for version in $(VERSIONS); do \
		$(BIN)/uv pip compile --quiet --python-version $$version --python-platform x86_64-manylinux_2_28 \
			--only-binary :all: --constraint infra/constraints.txt --extra dev pyproject.toml >/dev/null \
			|| exit 1; \
		echo "$$version resolves"; \
	done

wheel: $(READY)  ## Build sdist and wheel, install the wheel elsewhere and run it
	@infra/check_wheel.sh $(BIN)

clean:  ## Remove the environment, tool caches and generated clips (never ./runs or your own data)
	rm -rf $(VENV) $(VLLM_VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info build dist data/shapes
