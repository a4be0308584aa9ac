"""A token goes to the addresses that a program was given, and from there only to nodes of the same installation."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from scripted_node import ScriptedNode, admitted, client_of, connected, consumer_of, open_stream, scripted_node, soon

from headgate.core.frames import RestartFrame
from tests.certificates import Authority

FOREIGN = ['{"installation": "theirs"}', "", "nonsense", "[]", '{"installation": 5}', '{"installation": "ours"}' * 900]


@pytest.mark.parametrize("says", FOREIGN, ids=["theirs", "empty", "nonsense", "list", "number", "long"])
async def test_an_advertised_address_of_another_installation_is_sent_no_token(node: ScriptedNode, says: str) -> None:
    async with scripted_node() as other, client_of(node) as client:
        other.installation = says
        peer = await connected(node, nodes=[other.url])
        peer.cut()
        peer = await connected(node)
        assert other.asked == 1
        await peer.say(RestartFrame(None, other.url, "draining"))
        await open_stream(client, await connected(node))
        assert other.asked == 2
        assert other.is_alone


async def test_an_advertised_address_is_asked_once_and_the_first_one_too(node: ScriptedNode) -> None:
    async with scripted_node() as other, client_of(node) as client:
        for _ in range(3):
            await (await connected(node)).say(RestartFrame(None, other.url, "draining"))
            await (await connected(other)).say(RestartFrame(None, node.url, "draining"))
        await open_stream(client, await connected(node))
        assert (node.asked, other.asked) == (1, 1)


async def test_without_knowing_its_installation_a_client_goes_to_the_given_addresses_only(node: ScriptedNode) -> None:
    node.installation = "an older release"
    async with scripted_node() as other, client_of(node) as client:
        await (await connected(node)).say(RestartFrame(None, other.url, "draining"))
        await open_stream(client, await connected(node))
        assert other.asked == 0
        assert other.is_alone


async def test_a_consumer_goes_only_to_nodes_of_the_same_installation(node: ScriptedNode) -> None:
    async with scripted_node() as foreign, scripted_node() as other:
        foreign.installation = FOREIGN[0]
        consumer = consumer_of(node)
        try:
            entering = asyncio.create_task(consumer.__aenter__())
            peer = await node.accept()
            await peer.admit("c1", 1, 10.0, foreign.url, other.url)
            await soon(entering)
            peer.cut()
            await admitted(other, incarnation=2)
            assert (node.asked, foreign.asked, other.asked) == (1, 1, 1)
            assert foreign.is_alone
        finally:
            await soon(consumer.close())


async def test_over_tls_the_same_is_asked_with_the_same_trust(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = authority.sign("node", "127.0.0.1")
    context.load_cert_chain(pair.cert, pair.key)
    trust = ssl.create_default_context(cafile=str(authority.file))
    async with scripted_node(context) as node, scripted_node(context) as foreign, scripted_node(context) as other:
        foreign.installation = FOREIGN[0]
        async with client_of(node, tls=trust) as client:
            await (await connected(node)).say(RestartFrame(None, foreign.url, "draining"))
            await (await connected(node)).say(RestartFrame(None, other.url, "draining"))
            await open_stream(client, await connected(other))
        assert (node.asked, foreign.asked, other.asked) == (1, 1, 1)
        assert foreign.is_alone
