"""Real trainings, watched in a browser from their first sign to their end."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from browser_toys import chromium, opened, visit
from conftest_growth import GPT
from esper.growth import Doubling, grow
from ui_toys import live

ESPER = Path(sys.executable).with_name("esper")
SMALL = ["--fleets.0.hosts", "2", "--fleets.0.env.group", "1", "--fleets.0.env.episode", "4"]
SMALL += ["--fleets.0.options.examples", "200", "--learn.updates", "40", "--learn.collect.horizon", "4", "--exam", "2"]
LONG = 60_000
"""Milliseconds that a training may take on a machine that does much else."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from chromium()


def looks(page: Any, is_over: Any, place: Any) -> list[str]:
    """Return what a place of the page shows, from time to time, until something is over."""
    seen = []
    while not is_over():
        page.wait_for_timeout(50)
        if (text := place.inner_text()) not in seen:
            seen.append(text)
    return seen


def test_a_training_is_followed_from_an_empty_folder_to_its_end(browser, tmp_path):
    command = [ESPER, "train", "smoke", *SMALL, "--run-dir", tmp_path / "first"]
    with live(tmp_path) as server, opened(browser) as page:
        visit(page, server)
        assert "no run in" in page.locator(".lead").inner_text()
        page.evaluate("window.isSamePage = true")
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as training:
            row = page.locator(".runs tbody tr")
            row.locator(".c-state").filter(has_text="running").wait_for(timeout=LONG)
            row.get_by_role("link").click()
            page.locator(".badge").filter(has_text="live").wait_for()
            done = page.locator(".figures div").filter(has_text="of 40").locator("b")
            seen = looks(page, lambda: training.poll() is not None, done)
            assert len(seen) > 1, f"of the updates, only {seen} were shown"
            assert seen == sorted(seen, key=int)
            assert training.returncode == 0
        page.locator(".badge").filter(has_text="ended").wait_for()
        page.get_by_role("link", name="Frontier").click()
        page.locator(".point.own").first.wait_for()
        assert page.evaluate("window.isSamePage"), "nobody had to load the page again"


def train(log: Path, ready: threading.Event) -> None:
    """Let a model grow from 1 to 4 blocks, slowly, as soon as somebody watches."""
    model = GPT(1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    growth = grow(model, optimizer, total=60, blend=4, policy=Doubling((0.3, 0.6)), log=log)
    x = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(0))
    while not growth.done:
        loss = nn.functional.cross_entropy(growth.model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        growth.optimizer.step()
        growth.optimizer.zero_grad()
        growth.step(loss)
        if growth.steps > 3:
            ready.wait(60)
        time.sleep(0.06)
    growth.finish()


def test_a_model_that_grows_is_followed(browser, tmp_path):
    with live(tmp_path) as server, opened(browser) as page:
        visit(page, server)
        ready = threading.Event()
        training = threading.Thread(target=train, args=(tmp_path / "gpt", ready))
        training.start()
        try:
            page.locator(".runs tbody tr").get_by_role("link").click(timeout=LONG)
            blocks = page.locator(".figures div").filter(has=page.get_by_text("blocks", exact=True)).locator("b")
            blocks.filter(has_text="1").wait_for()
            page.locator(".badge").filter(has_text="live").wait_for()
            ready.set()
            page.evaluate("window.isSamePage = true")
            seen = looks(page, lambda: not training.is_alive(), blocks)
            assert seen == sorted(seen, key=int)
        finally:
            ready.set()
            training.join(60)
        blocks.filter(has_text="4").wait_for()
        page.locator(".badge").filter(has_text="ended").wait_for()
        assert page.locator("tbody .birth").count() == 2
        assert page.evaluate("window.isSamePage")
