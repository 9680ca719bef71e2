import os
from pathlib import Path

import pytest

from . import bare


@pytest.fixture(scope="session")
def bare_cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        pytest.skip("no access to /dev/kvm")
    return bare.build_cell(tmp_path_factory.mktemp("bare"))


@pytest.fixture
def guest(tmp_path: Path):
    """guest(body, *flags) -> path of a static program around `void run(void)`."""
    count = 0

    def build(body: str, *flags: str) -> Path:
        nonlocal count
        count += 1
        return bare.build_guest(tmp_path, f"guest{count}", body, *flags)

    return build
