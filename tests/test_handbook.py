"""The documents as a site: everything leads somewhere, nothing comes from elsewhere, and a search finds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe

from handbook import shelves
from handbook.__main__ import write
from handbook.code import session, transitions
from handbook.markdown import slug
from handbook.site import Broken, build
from tests.web.browser import needs_chromium, running_browser

ROOT = Path(__file__).parent.parent
BASE = "/some/where/"
LOOK_MS = 60_000.0


@pytest.fixture(scope="module")
def files() -> dict[PurePosixPath, bytes]:
    return build(ROOT, BASE)


class Page(HTMLParser):
    """The addresses, anchors and names of a page, and anything in it that a strict policy would not run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.inline: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open = tag
        values = dict(attrs)
        self.inline += [name for name in values if name.startswith("on") or name == "style"]
        self.inline += ["style"] if tag == "style" else []
        if "id" in values:
            assert values["id"] not in self.anchors, f"two things have the id {values['id']}"
            self.anchors.add(values["id"] or "")
        for name in ("href", "src"):
            if name in values:
                (self.links if tag == "a" else self.loaded).append(values[name] or "")

    def handle_data(self, data: str) -> None:
        if self._open == "script" and data.strip():
            self.inline.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._open = ""


def pages(files: dict[PurePosixPath, bytes]) -> dict[PurePosixPath, Page]:
    return {path: Page(content.decode()) for path, content in files.items() if path.suffix == ".html"}


def test_every_address_in_the_site_leads_to_a_file_and_every_anchor_to_a_heading(
    files: dict[PurePosixPath, bytes],
) -> None:
    found = pages(files)
    assert len(found) > 100
    for path, page in found.items():
        here = "http://site" + (BASE + str(path))
        for link in [*page.links, *page.loaded]:
            target = urlsplit(urljoin(here, link))
            if target.netloc != "site":
                assert link in page.links, f"{path} loads {link}"
                continue
            inside = PurePosixPath(unquote(target.path).removeprefix(BASE))
            assert inside in files, f"{path} → {link}"
            if target.fragment:
                assert target.fragment in found[inside].anchors, f"{path} → {link}"


def test_nothing_on_a_page_needs_more_than_files_of_the_site(files: dict[PurePosixPath, bytes]) -> None:
    for path, page in pages(files).items():
        assert page.inline == [], path
        assert all(not urlsplit(address).scheme and not address.startswith("//") for address in page.loaded), path
    for path in (path for path in files if path.suffix in (".css", ".js") and path.stem != "texts"):
        assert b"://" not in files[path], f"{path} names an address"


def test_every_document_is_in_the_navigation_once_with_its_title(files: dict[PurePosixPath, bytes]) -> None:
    home = files[PurePosixPath("index.html")].decode()
    navigation = home[home.index('<nav id="navigation"') : home.index("</nav>")]
    for source in shelves.sources(ROOT):
        assert navigation.count(f'href="{shelves.address_of(source)}"') == 1, source
    assert "<title>Headgate</title>" in home
    kafka = files[PurePosixPath("howto/kafka.html")].decode()
    assert "<title>Read and write Kafka · Headgate</title>" in kafka
    assert 'rel="prev"' in kafka
    assert 'rel="next"' in kafka


def test_a_page_that_is_yet_to_come_has_its_place() -> None:
    known = PurePosixPath("docs/operating/production.md")
    assert shelves.shelf_of(known).kind == "Operating"
    assert shelves.shelf_of(PurePosixPath("docs/howto/something-new.md")).title == "More"
    both = [PurePosixPath("docs/operating/tls.md"), known]
    assert shelves.in_order(both) == [known, both[0]]


# What is wrong with a page.


def made(tmp_path: Path, **texts: str) -> Path:
    """A tree with these documents, and the icon that every site has."""
    icon = tmp_path / "src/headgate/web/console/static/icon.svg"
    icon.parent.mkdir(parents=True)
    icon.write_text("<svg/>")
    for name, text in texts.items():
        (tmp_path / "docs").mkdir(exist_ok=True)
        (tmp_path / "docs" / f"{name}.md").write_text(text)
    return tmp_path


def test_everything_that_is_wrong_is_named_with_its_line(tmp_path: Path) -> None:
    lines = [
        "# First",
        "[a](other.md#two) [b](other.md) [c](#first)",
        "",
        "[d](missing.md)",
        "",
        "[e](other.md#three)",
        "",
        "[f](/etc/passwd) [g](../../outside.txt) [h](javascript:alert)",
        "",
        "<b>bold</b> <!-- a comment is left out -->",
        "",
        "![p](https://elsewhere.example/picture.png)",
    ]
    (tmp_path.parent / "outside.txt").write_text("not of the tree")
    root = made(tmp_path, index="\n".join(lines), other="# Other\n\n## Two\n", untitled="text\n")
    with pytest.raises(Broken) as caught:
        build(root)
    said = [str(problem) for problem in caught.value.problems]
    for line, words in [(4, "missing.md"), (6, "#three"), (8, "/etc"), (8, "outside"), (10, "<b>"), (12, "elsewhere")]:
        assert any(one.startswith(f"docs/index.md:{line}:") and words in one for one in said), (line, words, said)
    assert any(one.startswith("docs/untitled.md:1:") for one in said)
    assert not any("a comment" in one or "other.md#two" in one for one in said)


def test_files_and_folders_that_a_page_leads_to_are_shown(tmp_path: Path) -> None:
    root = made(tmp_path, index="# First\n\n[a](../deploy) [b](../deploy/node.service)\n")
    (root / "deploy" / "__pycache__").mkdir(parents=True)
    for name in ("node.service", ".hidden", "__pycache__/made.pyc"):
        (root / "deploy" / name).write_text(f"<{name}>")
    files = build(root)
    assert b"&lt;node.service&gt;" in files[PurePosixPath("files/deploy/node.service.html")]
    listed = files[PurePosixPath("files/deploy/index.html")].decode()
    assert 'href="../../files/deploy/node.service.html"' in listed
    assert not [path for path in files if "hidden" in str(path) or "pyc" in str(path)]


def test_a_build_replaces_the_one_before_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "site"
    write(out, {PurePosixPath("a/old.html"): b"1", PurePosixPath("index.html"): b"1"})
    (out / "kept.txt").write_text("somebody's own")
    write(out, {PurePosixPath("index.html"): b"2"})
    assert (out / "index.html").read_bytes() == b"2"
    assert not (out / "a/old.html").exists()
    assert (out / "kept.txt").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(FileExistsError):
        write(tmp_path / "full", {PurePosixPath("index.html"): b""})


def test_anchors_are_those_of_code_hosts() -> None:
    assert slug("What is `guaranteed`, and why?", set()) == "what-is-guaranteed-and-why"
    assert slug("auth, of source and sink", {"auth-of-source-and-sink"}) == "auth-of-source-and-sink-1"


def test_a_session_tells_what_was_typed_and_a_diagram_becomes_a_table() -> None:
    made = session("$ curl \\\n    -d <x>\n{}\n")
    assert made.count('class="typed') == 2
    assert "&lt;x&gt;" in made
    assert '<span class="printed">{}</span>' in made
    table = transitions('stateDiagram-v2\n    state "a, b" as a_b\n    [*] --> a_b\n    a_b --> End: time, failed\n')
    assert table.index("(begin)") < table.index("<td>time, failed</td><td>End</td>")
    assert "<td>a, b</td>" in table


# In a browser.


class Quiet(SimpleHTTPRequestHandler):
    """A server of plain files under a path, with the site's own page for what is not there."""

    def translate_path(self, path: str) -> str:
        return super().translate_path("/" + path.removeprefix(BASE))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write((Path(self.directory) / "404.html").read_bytes())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path, files: dict[PurePosixPath, bytes]) -> Iterator[str]:
    write(tmp_path / "site", files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "site")))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}{BASE}"
    server.shutdown()
    thread.join()
    server.server_close()


@needs_chromium
def test_a_reader_searches_copies_and_changes_the_colours_on_a_phone_and_axe_finds_nothing(
    served: str, tmp_path: Path
) -> None:
    with running_browser() as browser:
        context = browser.new_context(viewport={"width": 375, "height": 800}, color_scheme="light")
        page = context.new_page()
        page.set_default_timeout(LOOK_MS)
        asked: list[str] = []
        wrong: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)

        page.goto(served + "howto/kafka.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        page.keyboard.press("/")
        page.keyboard.type("record stuck")
        first = page.locator("#found a:first-child", has_text="A record is stuck")
        first.locator("mark", has_text="stuck").first.wait_for()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_url("**/howto/dead-letters.html*")

        page.goto(served + "howto/first-datasource.html")
        page.evaluate("navigator.clipboard.writeText = async (text) => { globalThis.copied = text; }")
        block = page.locator(".code", has_text="published version 2 of orders").first
        block.hover()
        block.locator("button.copy").click()
        copied = page.evaluate("globalThis.copied")
        assert copied.splitlines()[0] == "headgate ds edit orders --file orders.yaml"
        assert "published" not in copied

        ground = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(ground)
        page.get_by_role("button", name="Show in dark colours").click()
        assert page.evaluate(ground) != light
        page.reload()
        assert page.evaluate(ground) != light

        page.get_by_role("link", name="Menu").click()
        page.locator("#navigation summary", has_text="Operating").click()
        page.locator("#navigation").get_by_role("link", name="When something breaks").click()
        page.wait_for_url("**/operating/faults.html")
        assert not wrong

        page.goto(served + "deep/down/nothing.html")
        assert page.title() == "No such page · Headgate"
        page.get_by_role("link", name="begin at the first page").click()
        page.wait_for_url(served + "index.html")

        found = []
        for scheme, path in (("light", "howto/kafka.html"), ("dark", "concepts/groups.html"), ("light", "index.html")):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(served + path)
            page.evaluate("localStorage.clear()")
            page.reload()
            found += [(path, one["id"], one["nodes"][0]["html"]) for one in Axe().run(page).response["violations"]]
        assert found == []

        page.goto((tmp_path / "site" / "howto" / "kafka.html").as_uri())
        page.locator("#wanted").fill("tombstone")
        page.locator("#found a").first.wait_for()
    assert all(url.startswith((served, "file:///")) for url in asked), asked
