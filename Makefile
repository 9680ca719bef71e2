# Two commands from a clean clone: `make run` and `make test`. Both set up .venv first (needs python3 with venv, a C compiler).
PYTHON ?= python3
NATIVE := pyproject.toml hatch_build.py $(wildcard vmm/native/* vmm/native/*/* shim/*)

.PHONY: run test check setup test-hardware sanitize fuzz clean

.venv/ready: $(NATIVE)
	@echo "setting up .venv: packages and the native parts (can take minutes)"
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -q -e '.[test]'
	touch $@

# The packages that tests use inside VMs: numpy, pandas, ... (who only runs agents waits for none of them)
.venv/wheels: $(NATIVE)
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -q -e '.[test,wheels]'
	touch .venv/ready $@

setup: .venv/ready

run: .venv/ready
	.venv/bin/python examples/run_fleet.py

check: .venv/ready
	.venv/bin/ruff check .
	.venv/bin/mypy

test: .venv/wheels
	$(MAKE) --no-print-directory check
	.venv/bin/pytest -q

# agentfw on an emulated kvm_amd with nested paging (QEMU TCG); minutes, needs Debian's qemu-system-x86 (root installs it)
test-hardware: .venv/ready
	.venv/bin/python tests/hardware/run.py

# The native parts under AddressSanitizer and UBSan, in a venv of its own (an editable one would put them into the tree).
sanitize:
	$(PYTHON) -m venv .venv-sanitize
	AGENTFW_SANITIZE=1 .venv-sanitize/bin/pip install -q '.[test]'
	AGENTFW_SANITIZE=1 ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=$$(cc -print-file-name=libasan.so) \
		.venv-sanitize/bin/pytest -q tests/test_queue.py tests/test_flows.py tests/test_sites.py tests/native tests/kvm/test_cell.py

# What guests can reach, under libFuzzer (Debian's clang; without it gcc and a driver of our own): SECONDS for all targets together
SECONDS ?= 120
fuzz: .venv/ready
	.venv/bin/python tests/fuzz/run.py $(SECONDS)

clean:
	rm -rf build dist .venv .venv-sanitize vmm/agentfw_vmm/agentfw-cell vmm/agentfw_vmm/*.so
