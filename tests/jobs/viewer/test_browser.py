"""The viewer in a real browser: clicks, keys, links, hostile texts, an export from a disk."""

from __future__ import annotations

import re
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import axe_playwright_python
import pytest
from clips import clip as clip_file
from playwright.sync_api import expect
from served_viewer import served
from viewed_runs import CELLS, FRAMES, GRID, HOSTILE, OLD, features_of, video_id, write_viewed_run

from jobs.viewer.command import export_site, opened
from jobs.viewer.frames import FrameDecoder
from jobs.viewer.pages import deep_link
from tango_core.compressors import build_method

pytestmark = pytest.mark.system

WAIT_MS = 60_000
AXE = Path(axe_playwright_python.__file__).parent / "axe.min.js"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    run = write_viewed_run(
        tmp_path_factory.mktemp("run"), clips=60, video=clip_file("closed_gop.mp4")
    )
    with opened([run]) as pages:
        yield pages


@pytest.fixture(scope="module")
def address(pages):
    with served(pages) as address:
        yield address


@pytest.fixture
def tab(browser, address):
    """`tab(fragment, width, scheme)` opens a page; nothing may go wrong in it, or leave it."""
    wrong, contexts = [], []

    def open_(fragment="", width=1300, scheme="light", base=address):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "dialog", lambda dialog: (wrong.append(f"dialog {dialog.message}"), dialog.dismiss())
        )
        page.on("console", lambda m: m.type == "error" and wrong.append(m.text))
        home = base.rpartition("/")[0]
        page.on(
            "request",
            lambda request: (
                request.url.startswith((home, "blob:", "data:"))
                or wrong.append(f"request of {request.url}")
            ),
        )
        page.goto(f"{base}{fragment}")
        page.wait_for_selector("#main")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert [one for one in wrong if "status of 404" not in one] == []  # an unknown clip


def settled(page, number):
    """Wait until the list says that there are so many, and is not waiting."""
    count = re.compile(rf"^{number:,} (questions|of) ")
    expect(page.locator("p.count")).to_have_text(count, timeout=WAIT_MS)
    expect(page.locator('[aria-busy="true"]')).to_have_count(0, timeout=WAIT_MS)


def pixels(page, panel=0):
    """All pixels of a panel's picture, as text."""
    return page.locator(".picture canvas:not(.strip)").nth(panel).evaluate("c => c.toDataURL()")


def changed(page, panel, old):
    """Wait until a panel's picture is another one than it was."""
    page.wait_for_function(
        """([panel, old]) => document.querySelectorAll(".picture canvas:not(.strip)")[panel]
             .toDataURL() !== old""",
        arg=[panel, old],
    )


def drawn(page):
    """Wait until all panels have their frame; how many there are."""
    page.wait_for_selector(".picture canvas")
    page.wait_for_function(
        """() => [...document.querySelectorAll(".picture canvas:not(.strip)")].every((c) => {
             const { data } = c.getContext("2d").getImageData(2, 2, c.width - 4, c.height - 4);
             return new Set(data).size > 20; })"""
    )
    return page.locator(".panel").count()


def tango_plan(number=0):
    return build_method("tango", retention=0.25).compressor.plan(features_of(number))


def test_filters_change_the_address_and_back_undoes_them(tab, pages, asked):
    page = tab()
    settled(page, 120)
    page.select_option("select[name=column]", "tango r=0.25")
    page.select_option("select[name=outcome]", "lost")
    find = asked(pages)
    wanted = [("column", CELLS[1]), ("outcome", "lost")]
    lost = find(wanted)["total"]
    settled(page, lost)
    assert "column=tango%20r%3D0.25" in page.url
    page.select_option("select[name=group-half]", "a")
    half = find([*wanted, ("group", "half=a")])["total"]
    settled(page, half)
    page.reload()
    settled(page, half)
    page.go_back()
    settled(page, lost)
    page.click("text=Clear filters")
    settled(page, 120)
    page.select_option("select[name=status]", "decode_failed")
    settled(page, 2)


def test_keyboard_navigation_from_the_list_to_a_token_and_back(tab):
    page = tab()
    page.keyboard.press("/")
    page.keyboard.type("0000 question")
    settled(page, 2)
    page.keyboard.press("Tab")
    page.locator("h1").first.click()
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.textContent") == "Question 0-0?"
    page.keyboard.press("Enter")
    assert drawn(page) == 4
    page.keyboard.press("ArrowRight")
    expect(page.locator("output")).to_contain_text("2 of 4")
    page.keyboard.press("End")
    expect(page.locator("output")).to_contain_text(f"{FRAMES} of {FRAMES}")
    old = pixels(page, 1)
    page.keyboard.press("1")
    expect(page.locator("input[name=kept]")).not_to_be_checked()
    changed(page, 1, old)
    page.locator(".picture canvas").first.focus()
    page.keyboard.press("Shift+ArrowRight")
    expect(page.locator(".panel dd[aria-live]").first).to_contain_text(f"Frame {FRAMES}, row 1")
    page.keyboard.press("Escape")
    expect(page.locator(".panel dd[aria-live]")).to_have_count(0)
    page.keyboard.press("Escape")
    settled(page, 2)
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).not_to_be_visible()


def test_a_click_describes_the_sources_of_a_token(tab):
    page = tab(deep_link("run", ("shapes", video_id(0)), ["tango r=0.25"]))
    drawn(page)
    plan = tango_plan()
    sizes = (plan.offsets[1:] - plan.offsets[:-1]).tolist()
    first = [at for at, place in enumerate(plan.indices.tolist()) if place < GRID[0] * GRID[1]]
    token = max(first, key=lambda at: sizes[at])
    assert sizes[token] > 1
    row, column = divmod(int(plan.indices[token]), GRID[1])
    canvas = page.locator(".picture canvas:not(.strip)")
    box = canvas.bounding_box()
    position = {
        "x": (column + 0.5) * box["width"] / GRID[1],
        "y": (row + 0.5) * box["height"] / GRID[0],
    }
    canvas.click(position=position)
    said = page.locator(".panel dd[aria-live]")
    expect(said).to_contain_text(
        f"row {row + 1}, column {column + 1}: kept, made of {sizes[token]} tokens"
    )
    page.click("text=Kept tokens of this frame as tables")
    expect(page.locator("table.tokens tbody tr")).to_have_count(len(first))
    page.keyboard.press("Escape")
    salient = sum(sizes[at] == 1 for at in first)
    for words in (f"1 of {len(plan.drawing.segments)}, frames 1 to", f"salient ({salient})"):
        expect(page.locator(".panel")).to_contain_text(words)


def axe(page):
    """What axe-core finds wrong in the page, contrast included."""
    # The page allows no scripts but its own; what a browser is told from outside is not the page.
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa']})")
    assert len(found["passes"]) > 10
    return [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]]


def test_a_clip_opens_with_full_and_the_papers_method(tab):
    page = tab("#/list?column=uniform%20r%3D0.25")
    page.locator("a.question").first.click()
    drawn(page)
    assert page.locator(".panel h3").all_inner_texts() == [CELLS[0], CELLS[1], CELLS[2], OLD]


def test_one_slider_changes_the_retention_of_all_methods(browser, tmp_path):
    cells = ("full", *(f"{name} r={r}" for name in ("tango", "uniform") for r in (0.1, 0.25)))
    run = write_viewed_run(tmp_path, clips=1, cells=cells, video=clip_file("closed_gop.mp4"))
    with opened([run]) as pages, served(pages) as address:
        page = browser.new_page()
        page.goto(address + deep_link("run", ("shapes", video_id(0)), ["full"]))
        page.select_option("select[name=add]", "tango r=0.1")
        page.select_option("select[name=add]", "uniform r=0.1")
        page.locator("input[name=retention]").press("ArrowRight")
        names = page.locator(".panel h3")
        expect(names).to_have_text(["full", "tango r=0.25", "uniform r=0.25"])
        page.locator("body").press("-")
        expect(names).to_have_text(["full", "tango r=0.1", "uniform r=0.1"])
        page.close()


def test_the_address_of_a_view_restores_it(tab):
    page = tab(f"#/clip?benchmark=shapes&video={video_id(0).replace(' ', '%20')}")
    drawn(page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("j")
    page.select_option("select[name=against]", "full")
    page.locator(".picture canvas").nth(2).focus()
    page.keyboard.press("Shift+ArrowDown")
    link = page.locator("a.permanent").get_attribute("href")
    for part in ("cell=full", "question=q0-1", "t=1", "token=", "against=full"):
        assert part in link
    again = tab(link)
    drawn(again)
    counts = page.locator(".panel .facts").nth(2)
    expect(counts).to_contain_text("only here")
    for where in ("main h2", ".panel h3", ".panel dd[aria-live]", "output"):
        expect(again.locator(where).first).to_have_text(page.locator(where).first.inner_text())


def test_cells_are_added_and_removed_and_clip_navigation_uses_the_filter(tab):
    page = tab("#/list?group=half%3Db")
    page.locator("a.question").first.click()
    assert drawn(page) == 4
    page.click("[aria-label='Remove full']")
    expect(page.locator(".panel")).to_have_count(3)
    page.select_option("select[name=add]", "full")
    expect(page.locator(".panel")).to_have_count(4)
    expect(page.locator("h1")).to_have_text(video_id(1))
    page.keyboard.press("n")
    expect(page.locator("h1")).to_have_text(video_id(3))
    page.keyboard.press("p")
    expect(page.locator("h1")).to_have_text(video_id(1))
    page.click("text=All questions")
    settled(page, 60)


def test_hostile_strings_are_shown_as_text(tab):
    page = tab("#/list?q=onerror")
    settled(page, 2)
    expect(page.locator("a.question").first).to_have_text(f"What is it, {HOSTILE}?")
    page.locator("a.question").first.click()
    drawn(page)
    expect(page.locator("h2").first).to_have_text(f"What is it, {HOSTILE}?")
    expect(page.locator("ol.choices")).to_contain_text(HOSTILE)
    assert page.locator("#app img, #app script").count() == 0
    page.goto(page.url.split("#")[0] + f"#/clip?benchmark=shapes&video={HOSTILE.replace('#', '')}")
    page.reload()
    expect(page.locator("[role=alert]")).to_contain_text("no run has questions about the clip")


@pytest.mark.parametrize("fragment", ["", deep_link("run", ("shapes", video_id(1)), CELLS)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_screens_and_both_themes(tab, fragment, scheme):
    page = tab(fragment, width=360, scheme=scheme)
    page.wait_for_selector("a.question, .picture canvas")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert axe(page) == []
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    is_dark = sum(int(one) for one in paper[4:-1].split(",")) < 200
    assert is_dark is (scheme == "dark")
    page.select_option("select[name=theme]", "light" if is_dark else "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != paper
    page.reload()
    page.wait_for_selector("a.question, .picture canvas")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != paper


@pytest.fixture(scope="module")
def exported(pages, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    with closing(FrameDecoder(pixels=20_000)) as decoder:
        return export_site(pages, decoder, folder / "site")


@pytest.fixture(scope="module")
def any_server(exported):
    """Address of the export at a web server that knows nothing of the viewer."""
    handler = partial(SimpleHTTPRequestHandler, directory=exported.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()


@pytest.mark.parametrize("place", ["disk", "server"])
def test_an_export_works_from_a_disk_and_from_any_web_server(tab, exported, any_server, place):
    base = exported.as_uri() if place == "disk" else any_server
    page = tab(deep_link("run", ("shapes", video_id(0)), CELLS), base=base)
    page.wait_for_selector(".picture canvas")
    expect(page.locator(".panel")).to_have_count(4)
    expect(page.locator(".note.lacks")).to_have_count(1)  # of the old cache, and none about frames
    expect(page.locator(".note.lacks")).to_contain_text(f"{OLD}: Only the kept positions")
    expect(page.locator(".panel .note")).to_have_count(0)
    plan = tango_plan()
    kept = f"{plan.num_kept} of {plan.num_total} kept"
    expect(page.locator(".panel").nth(1)).to_contain_text(kept)
    page.keyboard.press("n")
    expect(page.locator("h1")).to_have_text(video_id(1))


def test_a_key_pressed_before_the_next_paint_uses_the_current_page(tab):
    page = tab(deep_link("run", ("shapes", video_id(0)), CELLS))
    drawn(page)
    page.locator(".picture canvas").first.focus()
    page.keyboard.press("Shift+ArrowRight")
    expect(page.locator(".panel dd[aria-live]").first).to_be_visible()
    # The second key comes with the change itself, before the browser has painted anything.
    page.evaluate(
        """() => {
             const press = () => document.activeElement.dispatchEvent(
               new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
             const watch = new MutationObserver(() => {
               if (document.querySelector(".panel dd[aria-live]")) return;
               watch.disconnect();
               press();
             });
             watch.observe(document.getElementById("main"), { childList: true, subtree: true });
             press(); }"""
    )
    settled(page, 120)
