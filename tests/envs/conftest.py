"""Collecting garbage before every fleet is quick where what came before is left out."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
