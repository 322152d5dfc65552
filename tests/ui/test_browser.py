"""The page in a browser: every view, with real runs, at three widths, light and dark, by mouse, touch and keyboard."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browser_toys import SOON, chromium, opened, visit
from esper.cli.report import write_report
from esper.leyline.reports import SlotReport
from esper.telemetry import RunFolder
from esper.telemetry.lock import locked
from esper.ui.server import listening
from telemetry_toys import arm, exam, life, small_run
from ui_toys import Live, append, line, live, until, write_growth, write_run

HOSTILE = "<img src=x onerror=hacked=1><b>&amp;"
FAULTS = """() => {
  const found = [];
  const all = (selector) => [...document.querySelectorAll(selector)].filter((e) => e.checkVisibility());
  const name = (e) => e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.[0]?.textContent.trim();
  const told = (e) => `${e.tagName} ${e.className?.baseVal ?? e.className}`;
  const named = "a[href], button, input, select, summary, [tabindex='0']:not(pre), [role=img], [role=region]";
  for (const e of all(named)) if (!name(e)) found.push(`no name: ${told(e)}`);
  for (const e of all("button[aria-label], a[aria-label]"))
    if (/[a-z]{2}/.test(e.innerText) && !e.ariaLabel.includes(e.innerText.trim())) found.push(`other name: ${told(e)}`);
  for (const e of all("[aria-hidden=true]")) if (e.querySelector("a, button, input")) found.push(`hidden: ${told(e)}`);
  for (const e of all("th")) if (!e.scope) found.push(`no scope: ${e.textContent}`);
  for (const e of all("button:not(.term, .sort), select, input[type=search]"))
    if (e.getBoundingClientRect().height < 24) found.push(`small: ${told(e)} ${e.textContent}`);
  if (all("h1").length !== 1) found.push(`${all("h1").length} titles`);
  if (document.documentElement.lang !== "en") found.push("no language");
  if (all("main").length !== 1) found.push("no main part");
  const ids = all("[id]").map((e) => e.id);
  if (new Set(ids).size !== ids.length) found.push(`ids are not unique: ${ids}`);
  if (all("[tabindex]").some((e) => e.tabIndex > 0)) found.push("tab order is not that of the page");
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) found.push(`${root.scrollWidth - root.clientWidth} px too wide`);
  return found;
}"""
"""What a reader without a mouse, without sight, or with a small screen would stumble over."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from chromium()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run that is done, one that goes on, one that stopped, a growth, a hostile name, and a damaged run."""
    base = tmp_path_factory.mktemp("runs")
    for name in ("done", "growing", "garden"):
        small_run(tmp_path_factory.getbasetemp(), base / name)
    for update in range(3, 12):
        later(base / "growing", "reports.jsonl", update)
    for name in ("growing", "garden"):
        for left in ("controller.safetensors", "exam.json", "lives.jsonl"):
            (base / name / left).unlink()
    write_run(base / HOSTILE, [0.25, 0.5, None, 0.75], {"name": HOSTILE, "learn": {"updates": 9}})
    anomaly = {"update": 4, "kind": HOSTILE, "where": "op", "explanation": HOSTILE, "suggestion": HOSTILE}
    append(base / HOSTILE, line(4, 0.5, anomalies=[anomaly], ops={HOSTILE: 1}, planted={HOSTILE: 1}))
    write_run(base / "damaged").joinpath("config.json").write_text("{")
    write_growth(base / "gpt", *growth_lines())
    return base


def growth_lines() -> list[dict[str, Any]]:
    """The log of a growth that doubled its blocks, and ended."""

    def at(step: int, **values: Any) -> dict[str, Any]:
        parameters = 100 if step < 40 else 140
        return {"step": step, "flops": 10**6 * step, "parameters": parameters, "loss": 40 / (step + 10), **values}

    points = [{"point": at(step, metric=None)} for step in range(0, 90, 10)]
    events = [("deepen", HOSTILE, 35), ("finish", "", 90)]
    told = [{"event": at(step, kind=kind, detail=text, progress=step / 90, blocks=4)} for kind, text, step in events]
    return sorted(points + told, key=lambda line: next(iter(line.values()))["step"])


@pytest.fixture(scope="module")
def server(folder) -> Iterator[Live]:
    with live(folder) as server:
        yield server


def views(server: Live) -> dict[str, tuple[str, str]]:
    """Addresses of all views, and what each must hold."""
    done, gpt, odd = (found(server, name) for name in ("done", "gpt", HOSTILE))
    return {
        "runs": ("#/", ".runs tbody tr"),
        "compare": (f"#/compare/{done},{odd}", ".uplot canvas"),
        "run": (f"#/run/{done}", ".uplot canvas"),
        "garden": (f"#/run/{done}/garden", ".fleet canvas"),
        "lives": (f"#/run/{done}/lives", "tbody a"),
        "life": (f"#/run/{done}/life/0", ".piece"),
        "host": (f"#/run/{done}/host/0/1/3", ".piece"),
        "frontier": (f"#/run/{done}/frontier", ".point.own"),
        "growth": (f"#/growth/{gpt}", ".uplot canvas"),
        "hostile": (f"#/run/{odd}", ".anomalies li"),
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1280, 2560])
def test_every_view_is_whole_at_every_width_in_both_themes(browser, server, width, scheme):
    with opened(browser, viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        for name, (address, holds) in views(server).items():
            visit(page, server, address)
            page.locator(holds).first.wait_for()
            page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
            page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            assert page.evaluate(FAULTS) == [], name
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(15, 20, 21)") == (scheme == "dark")


def test_a_stranger_finds_what_a_run_is_about_and_the_way_back(browser, server):
    with opened(browser, viewport={"width": 1000, "height": 300}) as page:
        visit(page, server)
        assert "6 runs" in page.locator(".lead").inner_text()
        page.evaluate("scrollTo(0, 150)")
        page.get_by_role("link", name="done", exact=True).evaluate("(link) => link.click()")
        page.locator(".lead").filter(has_text="never growing").wait_for()
        page.locator(".figures").filter(has_text="J now").wait_for()
        page.get_by_role("link", name="Frontier").click()
        page.locator(".point.own").first.wait_for()
        assert page.title() == "done · Esper"
        page.go_back()
        page.locator(".figures").filter(has_text="J now").wait_for()
        heading = "document.activeElement.tagName === 'H1'"
        until(lambda: page.wait_for_timeout(20) or page.evaluate(heading))  # readers of the screen hear where they are
        page.go_back()
        page.locator(".runs tbody tr").first.wait_for()
        until(lambda: page.wait_for_timeout(20) or page.evaluate("scrollY") == 150)


def test_a_run_that_stopped_says_how_to_go_on(browser, server):
    with opened(browser) as page:
        visit(page, server, f"#/run/{server.id('growing')}")
        assert page.locator(".command code").inner_text().startswith("esper resume ")
        visit(page, server, f"#/run/{server.id('done')}")
        assert page.locator(".command").count() == 0


def test_names_from_files_are_text(browser, server):
    with opened(browser) as page:
        visit(page, server)
        assert page.get_by_text(HOSTILE, exact=True).count() == 2, "name and recipe"
        page.get_by_role("link", name=HOSTILE).click()
        page.locator(".anomalies li").wait_for()
        assert page.locator("h1").inner_text() == HOSTILE
        assert page.locator(".anomalies b").inner_text() == HOSTILE.lower()
        assert page.locator("main img").count() == 0
        visit(page, server, f"#/growth/{server.id('gpt')}")
        assert HOSTILE in page.locator("table").inner_text()


def test_runs_are_searched_sorted_and_compared(browser, server):
    with opened(browser) as page:
        visit(page, server)
        rows = page.locator(".runs tbody tr")
        assert rows.count() == 6
        page.get_by_label("Search").fill("gro")
        until_count(page, rows, 1)
        page.get_by_label("Search").fill("nothing like it")
        page.get_by_text("No run is like that.").wait_for()
        page.get_by_label("Search").fill("")
        until_count(page, rows, 6)
        page.get_by_label("Show only").select_option("damaged")
        until_count(page, rows, 1)
        page.get_by_label("Show only").select_option("")
        until_count(page, rows, 6)
        page.get_by_role("button", name="run", exact=True).click()
        page.locator("[aria-sort=ascending]").filter(has_text="run").wait_for()
        names = [name.lower() for name in page.locator(".c-run a").all_inner_texts()]
        assert names == sorted(names)
        page.get_by_label("Compare done").check()
        page.get_by_text("choose another").wait_for()
        page.get_by_label("Compare growing").check()
        page.get_by_role("link", name="Compare", exact=True).click()
        page.locator(".uplot canvas").wait_for()
        assert page.locator("tbody tr").count() == 2


def until_count(page: Any, found: Any, count: int) -> None:
    until(lambda: page.wait_for_timeout(20) or found.count() == count)


@contextmanager
def written(folder: Path, change: Callable[[int], None], count: int) -> Iterator[None]:
    """Hold the lock of a run, and change it so many times from a thread, every half second, while a test looks."""
    over = threading.Event()

    def write() -> None:
        for i in range(count):
            if over.wait(0.5):
                return
            change(i)

    with locked(folder / ".lock", folder):
        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def later(folder: Path, name: str, update: int) -> None:
    """Append the last line of a log again, as a later update."""
    found = json.loads((folder / name).read_text().splitlines()[-1])
    append(folder, json.dumps(found | {"update": update}) + "\n", name)


def test_a_run_that_grows_is_followed_and_the_reader_is_left_in_peace(browser, server, folder):
    run = folder / "growing"
    with opened(browser, viewport={"width": 1000, "height": 500}) as page:
        visit(page, server, f"#/run/{server.id('growing')}")
        page.locator(".badge").filter(has_text="ended").wait_for()
        plot = page.locator(".plot").first
        plot.press("+")
        page.get_by_role("button", name="Show all").first.wait_for()
        page.locator("summary").first.focus()
        page.evaluate("scrollTo(0, 300)")
        charts = page.locator(".uplot").count()
        with written(run, lambda i: later(run, "reports.jsonl", 12 + i), 3):
            page.locator(".badge").filter(has_text="live").wait_for()
            page.locator(".figures").filter(has_text="15of 3").wait_for()
            assert page.evaluate("scrollY") == 300
            assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
            assert page.get_by_role("button", name="Show all").first.is_visible()
            assert page.locator(".uplot").count() == charts
        page.locator(".badge").filter(has_text="ended").wait_for()
        page.get_by_role("button", name="Show all").first.click()
        assert plot.evaluate("(plot) => plot === document.activeElement"), "the focus is not lost"


def test_what_changes_while_a_view_is_loaded_is_shown(browser, tmp_path):
    run = write_run(tmp_path / "run", [0.5])

    def answer_late(route: Any) -> None:
        answer = route.fetch()
        if len(asked) == 0:
            append(run, line(1, 0.75))
        asked.append(route.request.url)
        route.fulfill(response=answer)

    asked: list[str] = []
    with live(tmp_path) as server, opened(browser) as page:
        page.route("**/curves*", answer_late)
        visit(page, server, f"#/run/{server.id('run')}")
        page.locator(".figures").filter(has_text="0.750").wait_for()


def test_a_page_opened_in_the_background_shows_what_it_missed(browser, tmp_path):
    run = write_run(tmp_path / "run", [0.5])
    with live(tmp_path) as server, opened(browser) as page:
        page.add_init_script("Object.defineProperty(document, 'hidden', { get: () => !window.isSeen });")
        visit(page, server, f"#/run/{server.id('run')}")
        page.locator(".figures").filter(has_text="0.500").wait_for()
        append(run, line(1, 0.75))
        page.evaluate("window.isSeen = true; document.dispatchEvent(new Event('visibilitychange'))")
        page.locator(".figures").filter(has_text="0.750").wait_for()


def test_the_list_follows_a_run(browser, server, folder):
    run = folder / "growing"
    with opened(browser) as page:
        visit(page, server)
        row = page.locator(".runs tbody tr").filter(has=page.get_by_role("link", name="growing", exact=True))
        row.locator("input").focus()
        with written(run, lambda i: later(run, "reports.jsonl", 20 + i), 2):
            row.locator(".c-state").filter(has_text="running").wait_for()
            row.locator(".c-updates").filter(has_text="22 of 3").wait_for()
            assert row.locator("input").evaluate("(box) => box === document.activeElement")
            page.locator(".badge").filter(has_text="live").wait_for()


def test_a_garden_is_followed_replayed_and_pointed_at(browser, server, folder):
    run = folder / "garden"
    with opened(browser, viewport={"width": 1000, "height": 700}) as page:
        visit(page, server, f"#/run/{server.id('garden')}/garden")
        place, slider = page.locator("output"), page.get_by_role("slider")
        with written(run, lambda i: later(run, "garden.jsonl", 3 + i), 2):
            place.filter(has_text="update 4 · decision 1").wait_for()
        slider.press("Home")
        place.filter(has_text="update 0 · decision 0").wait_for()
        later(run, "garden.jsonl", 9)
        slider.press("ArrowRight")
        place.filter(has_text="update 0 · decision 1").wait_for()
        canvas = page.locator(".fleet canvas")
        canvas.press("ArrowRight")
        page.locator(".info").filter(has_text="Host 1: score").wait_for()
        canvas.hover(position={"x": 5, "y": 5})
        page.locator(".info").filter(has_text="Host 0: score").wait_for()
        page.get_by_role("button", name="Play").click()
        place.filter(has_text="update 9").wait_for()
        page.get_by_role("button", name="One decision back").click()
        canvas.click(position={"x": 5, "y": 5})
        page.get_by_text("Host 0 of spirals").wait_for()
        page.get_by_role("link", name="Back to the garden").click()
        place.filter(has_text="update 9 · decision 0").wait_for()


def drawn(page: Any, selector: str) -> int:
    """How many colors a canvas shows."""
    count = """(canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return new Set(new Uint32Array(data.buffer)).size;
    }"""
    return page.locator(selector).first.evaluate(count)


def test_a_garden_of_1500_hosts_is_shown(browser, server, folder):
    hosts = 1500
    cells = "".join("DTBHFPERdtbhfp"[h % 14] + str(h % 10) + "D0B5" for h in range(hosts))
    fleet = {"fleet": 0, "label": "many", "slots": ["a", "b", "c"], "hosts": hosts, "cells": [cells] * 4}
    fleet |= {"ops": ["W" * hosts] * 4, "scores": [[h / hosts for h in range(hosts)]] * 4, "born": [[], [], [7], []]}
    write_run(folder / "many", [0.5])
    append(folder / "many", json.dumps({"update": 0, "fleets": [fleet]}) + "\n", "garden.jsonl")
    try:
        with opened(browser, viewport={"width": 1280, "height": 800}) as page:
            visit(page, server, f"#/run/{until(lambda: found(server, 'many'))}/garden")
            assert "1,500 hosts with 4,500 slots" in page.locator(".lead").inner_text()
            assert drawn(page, ".fleet canvas") > 20
            canvas = page.locator(".fleet canvas")
            canvas.focus()
            for _ in range(3):
                canvas.press("ArrowDown")
            page.locator(".info").filter(has_text="score 0.").wait_for()
    finally:
        shutil.rmtree(folder / "many")
        until(lambda: not found(server, "many"))


def found(server: Live, name: str) -> str | None:
    return next((row["id"] for row in server.get("/api/runs")["runs"] if row["name"] == name), None)


def test_words_are_explained_by_mouse_touch_and_keyboard(browser, server):
    address = f"#/run/{server.id('done')}"
    with opened(browser) as page:
        visit(page, server, address)
        word, note = page.locator(".term").filter(has_text="growth").first, page.get_by_role("tooltip")
        word.focus()
        page.keyboard.press("Enter")
        assert "divided by" in note.inner_text()
        assert word.get_attribute("aria-expanded") == "true"
        page.keyboard.press("Escape")
        assert note.count() == 0
        word.hover()
        note.wait_for()
        page.mouse.move(0, 0)
        until_count(page, note, 0)
    with opened(browser, viewport={"width": 420, "height": 800}, has_touch=True) as page:
        visit(page, server, address)
        page.locator(".term").filter(has_text="growth").first.tap()
        box = page.get_by_role("tooltip").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 420


def test_the_theme_is_switched_and_remembered(browser, server):
    ground = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, color_scheme="light") as page:
        visit(page, server)
        light = page.evaluate(ground)
        for _ in range(2):
            page.locator(".switch").click()
        assert page.evaluate(ground) == "rgb(15, 20, 21)"
        page.reload()
        page.locator(".runs").wait_for()
        assert page.evaluate(ground) == "rgb(15, 20, 21)"
        page.locator(".switch").click()
        assert page.evaluate(ground) == light
    with opened(browser, color_scheme="light") as page:
        page.add_init_script(
            "Object.defineProperty(window, 'localStorage', { get() { throw new Error('forbidden'); } })"
        )
        visit(page, server)
        for _ in range(2):
            page.locator(".switch").click()
        assert page.evaluate(ground) == "rgb(15, 20, 21)", "storage may be forbidden"


def test_everything_is_reached_by_keyboard(browser, server):
    with opened(browser) as page:
        visit(page, server)
        page.locator("body").press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        seen = []
        for _ in range(18):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.textContent || document.activeElement.ariaLabel"))
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", f"no visible focus on {seen[-1]}"
        assert seen[0] == "Esper"
        assert "modified" in seen
        page.get_by_role("link", name="done", exact=True).press("Enter")
        page.locator(".uplot canvas").first.wait_for()
        plot = page.locator(".plot").first
        plot.press("Home")
        assert page.locator(".readout .at").first.inner_text() == "update 0"
        assert "Arrow keys" in plot.get_attribute("aria-label")


def test_motion_stops_where_it_is_not_wanted(browser, server, folder):
    with opened(browser, reduced_motion="reduce") as page, locked(folder / "growing/.lock", folder / "growing"):
        visit(page, server, f"#/run/{server.id('growing')}")
        page.locator(".badge").filter(has_text="live").wait_for()
        assert page.locator(".badge").evaluate("(e) => getComputedStyle(e, '::before').animationName") == "none"


def test_errors_are_sentences_on_the_page(browser, server):
    with opened(browser, "404", "422") as page:
        page.goto(f"http://127.0.0.1:{server.port}/#/run/nothing")
        page.get_by_role("alert").filter(has_text="no such run").first.wait_for()
        page.goto(f"http://127.0.0.1:{server.port}/#/nowhere/at/all")
        page.get_by_role("alert").filter(has_text="no such page").first.wait_for()
        page.goto(f"http://127.0.0.1:{server.port}/#/run/{server.id('done')}/host/0/999/0")
        page.get_by_role("alert").filter(has_text="no such host").first.wait_for()
        visit(page, server)
        assert page.get_by_text("config.json is damaged").count() == 1


def test_a_lost_connection_is_said_and_found_again(browser, tmp_path):
    write_run(tmp_path / "run", [0.5])
    with opened(browser, "ERR_", "Failed to load") as page:
        with live(tmp_path) as first:
            visit(page, first, f"#/run/{first.id('run')}")
            page.locator(".badge").filter(has_text="ended").wait_for()
        page.locator(".badge").filter(has_text="connection lost").wait_for()
        append(tmp_path / "run", line(1, 0.75))
        again = Live(tmp_path)
        again.listener.close()
        again.listener = listening("127.0.0.1", first.port)
        again.thread = threading.Thread(target=again.server.run, kwargs={"sockets": [again.listener]})
        again.thread.start()
        try:
            page.locator(".badge").filter(has_text="ended").wait_for(timeout=4 * SOON)
            page.locator(".figures").filter(has_text="0.750").wait_for()
        finally:
            again.server.handle_exit(2, None)
            again.thread.join(10)


def test_views_that_are_left_leave_nothing_behind(browser, server):
    alive = "import('/static/charts.js').then((charts) => charts.chartCount())"
    with opened(browser) as page:
        visit(page, server)
        for _ in range(2):
            for address, holds in views(server).values():
                page.evaluate(f"location.hash = '{address}'")
                page.locator(holds).first.wait_for()
        page.evaluate("location.hash = '#/'")
        page.locator(".runs tbody tr").first.wait_for()
        assert page.evaluate(alive) == 0
        assert page.locator(".uplot").count() == 0


def test_a_token_lets_the_page_in(browser, folder):
    with live(folder, token="a token") as server, opened(browser) as page:
        page.goto(f"http://127.0.0.1:{server.port}/?token=a%20token")
        page.locator(".runs tbody tr").first.wait_for()
        assert "token" not in page.url


@pytest.fixture(scope="module")
def report(folder, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("sent") / HOSTILE
    shutil.copytree(folder / "done", run)
    return write_report(RunFolder.open(run))


@pytest.mark.parametrize("width", [420, 1280])
def test_a_report_opens_from_a_file_without_a_network(browser, report, width):
    with opened(browser, viewport={"width": width, "height": 900}) as page:
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.context.set_offline(True)
        page.goto(report.as_uri())
        page.locator(".uplot canvas").first.wait_for()
        assert page.locator("h1").inner_text() == HOSTILE == page.title()
        assert "the controller" in page.locator(".lead").inner_text()
        assert page.locator(".arms").first.locator("th").count() == 5
        page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        until(lambda: page.wait_for_timeout(20) or drawn(page, ".life canvas") > 2)
        assert page.evaluate(FAULTS) == []
        assert asked == [report.as_uri()]


def test_a_report_prints_in_light_with_what_matters_unfolded(browser, report):
    with opened(browser, color_scheme="dark") as page:
        page.goto(report.as_uri())
        page.locator(".uplot canvas").first.wait_for()
        closed = page.locator("details:not([open])").count()
        page.emulate_media(media="print")
        page.locator(".scatter svg").first.wait_for()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(24, 33, 31)"
        assert not page.locator(".switch").is_visible()
        page.emulate_media(media="screen")
        until_count(page, page.locator("details:not([open])"), closed)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 20, 21)"


AT_ONCE = """() => {
  for (let i = 0; i < 2; i++) dispatchEvent(new Event("beforeprint"));
  const found = [...document.querySelectorAll(".scatter svg, .uplot canvas")].filter((e) => e.checkVisibility());
  dispatchEvent(new Event("afterprint"));
  return [found.length, document.querySelectorAll("details[open]").length];
}"""


def test_all_pictures_are_there_before_the_paper_is(browser, report, tmp_path):
    with opened(browser, viewport={"width": 1280, "height": 900}) as page:
        page.goto(report.as_uri())
        page.locator(".uplot canvas").first.wait_for()
        pictures, unfolded = page.evaluate(AT_ONCE)
        assert (pictures, unfolded) == (5, 0), "J, score for size and compute, ops and blueprints; then all as before"
        page.pdf(format="A4", path=tmp_path / "paper.pdf")
        assert (tmp_path / "paper.pdf").read_bytes().count(b"/Type /Page\n") in (2, 3)


NUMBERS = {
    "fixed(0.12345)": "0.123",
    "fixed(-1.5, 1)": "−1.5",
    "fixed(null)": "–",
    "signed(0.0004)": "0.000",
    "signed(-0.0204)": "−0.020",
    "signed(0.5)": "+0.500",
    "digits(1.4)": "1.40",
    "digits(1234.5)": "1,235",
    "digits(0.00012)": "1.2e−4",
    "digits(NaN)": "–",
    "plain(0.50)": "0.5",
    "short(12345)": "12.3 k",
    "short(999999)": "1 M",
    "short(2.5e12)": "2.5 T",
    "size(9999)": "9,999",
    "size(160512)": "161 k",
    "operations(1.07e6)": "1.07 MFLOP",
    "percent(0.001)": "<1 %",
    "percent(0.256)": "26 %",
    "counted(1, 'host')": "1 host",
    "counted(1500, 'host')": "1,500 hosts",
    "ago(0, 59)": "just now",
    "ago(0, 7300)": "2 h ago",
    "ago(0, 90000)": "1 day ago",
    "spoken('SET_ALPHA_TARGET')": "set alpha target",
}
"""How numbers and names are written, three digits each."""


def test_numbers_are_written_as_people_read_them(browser, server):
    names = "{fixed, signed, digits, plain, short, size, operations, percent, counted, ago, spoken}"
    with opened(browser) as page:
        page.goto(f"http://127.0.0.1:{server.port}/")
        for call, said in NUMBERS.items():
            assert page.evaluate(f"import('/static/format.js').then(({names}) => {call})") == said, call


POINTS = """async ([isBetterBelow, labels]) => {
  const { scatter } = await import("/static/scatter.js");
  const one = scatter({ title: "t", xName: "x", format: String });
  document.body.append(one.element);
  const point = (label, i) => ({ label, x: 100 + i, y: 1 + i / 50, low: null, high: null, own: !i, title: "" });
  one.update({ points: labels.map(point), yName: "y", isBetterBelow });
  await new Promise((done) => setTimeout(done, 100));
  const boxes = [...one.element.querySelectorAll("text.name")].map((e) => e.getBoundingClientRect().toJSON());
  const heights = [...one.element.querySelectorAll("circle")].map((e) => Number(e.getAttribute("cy")));
  one.destroy();
  return { boxes, heights };
}"""


def test_better_is_further_up_and_no_name_hides_another(browser, server):
    labels = [f"an arm with a name {i}" for i in range(40)]
    with opened(browser) as page:
        visit(page, server)
        up, down = (page.evaluate(POINTS, [below, labels]) for below in (False, True))
        assert up["heights"] == sorted(up["heights"], reverse=True)
        assert down["heights"] == sorted(down["heights"])
        assert 12 < len(up["boxes"]) < 40, "what finds no room is left out"
        for i, a in enumerate(up["boxes"]):
            for b in up["boxes"][:i]:
                apart = a["right"] <= b["left"] or b["right"] <= a["left"]
                assert apart or a["bottom"] <= b["top"] + 3 or b["bottom"] <= a["top"] + 3


def test_a_run_of_which_only_an_exam_is_left_shows_it(browser, server, folder):
    RunFolder(write_run(folder / "examined")).write_exam([exam(arm("learned"), arm("never", 0.1, 0.05, 0.2))], [])
    try:
        with opened(browser) as page:
            visit(page, server, f"#/run/{until(lambda: found(server, 'examined'))}")
            page.locator(".point.own").first.wait_for()
            assert page.url.endswith("/frontier")
            page.locator(".arms tbody tr").nth(1).hover()
            page.locator(".said").first.filter(has_text="never: J 0.500").wait_for()
    finally:
        shutil.rmtree(folder / "examined")
        until(lambda: not found(server, "examined"))


def slot(name: str, stage: str, alpha: float = 0.0, blueprint: str | None = None) -> SlotReport:
    return SlotReport(name, stage, alpha, blueprint, None)


def test_a_life_says_what_was_done_where_and_what_was_likely(browser, server, folder):
    empty = (slot("s0", "DORMANT"), slot("s1", "DORMANT"))
    grown = (empty[0], slot("s1", "TRAINING", 0.0, "conv_heavy"))
    gone = (empty[0], slot("s1", "EMBARGOED"))
    known = {"op": {"WAIT": 0.25, "GERMINATE": 0.75}, "slot": {"s0": 0.4, "s1": 0.6}}
    first, second, third = life("GERMINATE", "WAIT", "PRUNE").epochs
    epochs = (
        replace(first, slots=grown, legal=("WAIT", "GERMINATE"), probabilities=known),
        replace(second, slots=grown, legal=("WAIT",)),
        replace(third, slots=gone, score=0.75),
    )
    run = RunFolder(write_run(folder / "lived", [0.5]))
    never = replace(life("WAIT", "WAIT", "WAIT"), arm="never")
    run.write_exam(
        [exam(arm("learned"), arm("never", 0.1, 0.05, 0.2))], [replace(never, arm="learned", epochs=epochs), never]
    )
    try:
        with opened(browser) as page:
            visit(page, server, f"#/run/{until(lambda: found(server, 'lived'))}/life/0")
            rows = page.locator(".decisions tbody tr")
            assert "germinate conv_heavy in s1" in rows.nth(0).inner_text()
            assert "prune s1" in rows.nth(2).inner_text()
            assert rows.nth(0).locator(".bar-of").get_attribute("aria-label") == "wait 25 %, germinate 75 %"
            assert rows.nth(1).locator(".legal").get_attribute("aria-label") == "legal: wait"
            rows.nth(0).locator("summary").click()
            rows.nth(0).locator(".heads").filter(has_text="slot s1 60 %, s0 40 %").wait_for()
            strip = page.locator(".strip").nth(1).get_attribute("aria-label")
            assert strip == "s1: training conv_heavy from 0, embargoed from 2"
            assert "0.250 more than the same host never grown" in page.locator(".lead").inner_text()
    finally:
        shutil.rmtree(folder / "lived")
        until(lambda: not found(server, "lived"))
