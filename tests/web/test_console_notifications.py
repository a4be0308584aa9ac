"""Notifications in the browser: somebody to tell is added by form, tested, told, changed and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from headgate.testing.processes import NodeProcess
from tests.receivers import MailServer, mail_server, receiver
from tests.waiting import wait_until
from tests.web.browser import needs_chromium, opened, say

pytestmark = needs_chromium

PATH = "/settings/notifications"
HOOK = {"source": {"type": "webhook"}, "mapping": {"set": {"id": "int(id)"}}, "sink": {"type": "blackhole"}}


@pytest.fixture(autouse=True)
def nobody_is_told(node: NodeProcess) -> Iterator[None]:
    """Each test begins and ends without notifications."""
    yield
    node.request("DELETE", "/api/notifications")


def document(node: NodeProcess) -> Any:
    return node.call("GET", "/api/notifications")["document"]


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def alert(page: Page) -> Any:
    return page.locator("#outcome [role=alert]")


def said(page: Page) -> Any:
    return page.locator("#outcome [role=status]")


def test_a_webhook_is_added_tested_told_changed_and_deleted(node: NodeProcess, context: BrowserContext) -> None:
    node.apply({"orders": HOOK})
    node.call("PUT", "/api/secrets/hook-key", {"value": "a-key-that-nobody-sees"})
    with receiver() as hook:
        page, complaints = opened(context, node, PATH)
        form, rule = page.locator("#target-form"), page.locator("#rule-form")
        expect(page.locator("main")).to_contain_text("Nobody is told of anything")
        press(page, "Tell somebody")
        expect(form.get_by_label("Name", exact=True)).to_be_focused()
        form.get_by_label("Name", exact=True).fill("pager")
        form.get_by_label("URL", exact=True).fill("ftp://example.com/")
        form.get_by_label("More open dead letters than", exact=True).check()
        form.get_by_label("More open dead letters than, of rule letters").fill("0")
        press(page, "Save")
        expect(page.locator("#webhook-url-wrong")).to_contain_text("http")
        expect(form.get_by_label("URL", exact=True)).to_be_focused()
        expect(form.get_by_label("URL", exact=True)).to_have_attribute("aria-invalid", "true")
        assert document(node) is None
        form.get_by_label("URL", exact=True).fill(hook.url)
        form.get_by_label("Signed with the secret").select_option("hook-key")
        press(page, "Save")
        expect(page.get_by_role("table", name="Targets")).to_contain_text("pager")
        expect(page.get_by_role("table", name="Rules")).to_contain_text("dead letters (above 0)")
        assert document(node) == {
            "targets": {"pager": {"type": "webhook", "url": hook.url, "secret": {"$secret": "hook-key"}}},
            "rules": {"letters": {"when": "dead_letters", "above": 0, "to": ["pager"]}},
        }
        press(page, "Test pager")
        expect(said(page)).to_have_text("pager has taken a test message.")
        wait_until(lambda: hook.bodies(kind="test"), "the test is there")

        press(page, "Edit letters")
        expect(rule.get_by_label("Name", exact=True)).to_be_focused()
        rule.get_by_label("When it has held for").fill("soon")
        press(page, "Save")
        expect(page.locator("#for-wrong")).not_to_be_empty()
        rule.get_by_label("When it has held for").fill("0s")
        rule.get_by_label("Names, * stands for any text").fill("or*")
        press(page, "Save")
        expect(page.get_by_role("table", name="Rules")).to_contain_text("or*")
        node.call("POST", "/hooks/orders", {"id": "seven"})
        wait_until(lambda: hook.bodies(kind="opened", rule="letters"), "it is told")
        expect(page.get_by_role("table", name="What is wrong")).to_contain_text("orders")

        press(page, "Edit pager")
        expect(form.get_by_label("Name", exact=True)).to_be_focused()
        expect(form.get_by_label("URL", exact=True)).to_have_value(hook.url)
        expect(form.get_by_label("Signed with the secret")).to_have_value("hook-key")
        form.get_by_label("Name", exact=True).fill("night pager")
        press(page, "Save")
        expect(page.locator("#target-name-wrong")).to_contain_text("lower-case")
        form.get_by_label("Name", exact=True).fill("night-pager")
        press(page, "Save")
        expect(page.get_by_role("table", name="Targets")).to_contain_text("night-pager")
        assert document(node)["rules"]["letters"]["to"] == ["night-pager"]
        assert list(document(node)["targets"]) == ["night-pager"]

        press(page, "Delete night-pager")
        expect(page.get_by_role("dialog")).to_contain_text("the rule letters")
        say(page, "Delete")
        expect(page.locator("main")).to_contain_text("Nobody is told of anything")
        assert document(node) is None
        assert complaints == []


def test_mail_is_set_up_with_the_keyboard_alone_and_arrives(node: NodeProcess, context: BrowserContext) -> None:
    with mail_server(MailServer()) as post:
        page, complaints = opened(context, node, PATH)
        form = page.locator("#target-form")
        page.get_by_role("button", name="Tell somebody").press("Enter")
        expect(form.get_by_label("Name", exact=True)).to_be_focused()
        for text in ("mail", "e-mail", "127.0.0.1", "not at all", str(post.port)):
            page.keyboard.type(text)
            page.keyboard.press("Tab")
        expect(form.get_by_label("Server")).to_have_value("127.0.0.1")
        expect(form.get_by_label("Port", exact=True)).to_have_value(str(post.port))
        for text in ("", "", "headgate@example.com", "ops@example.com"):
            page.keyboard.type(text)
            page.keyboard.press("Tab")
        page.keyboard.press("Tab")  # Over the authority,
        page.keyboard.press("Tab")  # and the link to the secrets.
        page.keyboard.press("Space")
        form.get_by_label("Name", exact=True).press("Enter")
        expect(page.get_by_role("table", name="Targets")).to_contain_text("mail")
        found = document(node)
        assert found["targets"]["mail"]["to"] == ["ops@example.com"]
        assert [rule["to"] for rule in found["rules"].values()] == [["mail"]]
        page.get_by_role("button", name="Test mail").press("Enter")
        expect(said(page)).to_have_text("mail has taken a test message.")
        assert [one["Subject"] for one in post.messages] == ["[headgate] A test: notifications of Headgate arrive here"]
        press(page, "Edit mail")
        form.get_by_label("Port", exact=True).fill("1")
        press(page, "Save")
        expect(form).to_be_hidden()
        press(page, "Test mail")
        expect(alert(page)).not_to_be_empty()
        press(page, "Tell nobody any more")
        say(page, "Tell nobody any more")
        expect(page.get_by_role("table", name="Targets")).to_have_count(0)
        assert complaints == []


@pytest.mark.parametrize("width", [375, 1280])
def test_a_chat_is_told_of_what_is_ticked_and_a_rule_that_tells_nobody_goes(
    node: NodeProcess, context: BrowserContext, width: int
) -> None:
    """Its URL is a secret, chosen by name; operators see rules, and no form."""
    node.call("PUT", "/api/secrets/chat-url", {"value": "http://127.0.0.1:1/chat"})
    page, complaints = opened(context, node, PATH)
    form, rule = page.locator("#target-form"), page.locator("#rule-form")
    page.set_viewport_size({"width": width, "height": 812})
    press(page, "Tell somebody")
    form.get_by_label("Name", exact=True).fill("chat")
    form.get_by_label("How").select_option("slack")
    press(page, "Save")
    expect(page.locator("#slack-url-wrong")).not_to_be_empty()
    form.get_by_label("The secret that has the webhook's URL").select_option("chat-url")
    form.get_by_label("A datasource fails, or no node runs it").check()
    form.get_by_label("Lag longer than", exact=True).check()
    form.get_by_label("Lag longer than, of rule late").fill("long")
    press(page, "Save")
    expect(page.locator("[data-rule=late] [data-wrong]")).not_to_be_empty()
    form.get_by_label("Lag longer than, of rule late").fill("1h")
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    press(page, "Save")
    expect(page.get_by_role("table", name="Rules")).to_contain_text("lag (above 1h)")
    press(page, "Edit broken")
    rule.get_by_label("degraded").check()
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    press(page, "Save")
    expect(rule).to_be_hidden()
    expect(page.get_by_role("table", name="Rules")).to_contain_text("degraded")
    press(page, "Edit chat")
    expect(form.get_by_label("Name", exact=True)).to_be_focused()
    form.get_by_label("Lag longer than", exact=True).uncheck()
    press(page, "Save")
    expect(page.get_by_role("dialog")).to_contain_text("late")
    say(page, "Save")
    expect(page.get_by_role("table", name="Rules")).not_to_contain_text("late")
    assert document(node) == {
        "targets": {"chat": {"type": "slack", "url": {"$secret": "chat-url"}}},
        "rules": {"broken": {"when": "health", "health": ["error", "no_node", "degraded"], "to": ["chat"]}},
    }
    operator = node.call("POST", "/api/tokens", {"name": f"operates {width}", "role": "operator"})["token"]
    page.goto(node.url)
    press(page, "Sign out")
    page, _ = opened(context, node, PATH, operator)
    expect(page.get_by_role("table", name="Rules")).to_contain_text("broken")
    assert page.locator("main form, main button:visible").count() == 0
    assert complaints == []
