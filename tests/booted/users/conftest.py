"""Each file of tests of probes on programs has guests of its own: what it leaves on threads' stacks is in its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qemu.guest import Guest
from tests.booted.conftest import for_tests


@pytest.fixture(scope="module")
def _linux() -> Iterator[Guest]:
    yield from for_tests("x86_64")


@pytest.fixture(scope="module")
def _arm_guest() -> Iterator[Guest]:
    yield from for_tests("aarch64")


@pytest.fixture(scope="module")
def _ppc_guest() -> Iterator[Guest]:
    yield from for_tests("ppc64le")
