"""`headgate up`: run a node until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from headgate.cli import home as homes
from headgate.demo import ORDER

if TYPE_CHECKING:
    from headgate.config import Settings
    from headgate.runtime.log_shipper import LogShipper
    from headgate.runtime.node import Node
    from headgate.store.sessions import Sessions
    from headgate.store.tokens import Tokens
    from headgate.web.app import App


STOPPING = "stopping: streams are drained and given back"
LOOK_S = 2.0
MOST_PROCESSES = 64  # More than this is a slip: a process uses a core.
LONGEST_STOP_S = 45.0  # Draining, leaving and stopping an embedded database together take less.


def up(
    database: Annotated[str | None, typer.Option(help="A PostgreSQL URL. Absent: embedded.")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port; the next free one if 8470 is taken.")] = None,
    name: Annotated[str | None, typer.Option(help="A label for this node.")] = None,
    advertise: Annotated[
        str | None, typer.Option(help="The URL at which others reach this node. {port} in it: its port.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="A certificate in PEM: the node speaks HTTPS.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key, if that is in another file.")
    ] = None,
    home: Annotated[Path | None, typer.Option(help="Where the embedded database and the keys live.")] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=MOST_PROCESSES, help="How many nodes to run, each in its own process.")
    ] = 1,
    demo: Annotated[
        bool | None, typer.Option("--demo/--no-demo", help="Load datasources to look at; or remove them again.")
    ] = None,
    demo_broker: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A broker for the demo: redis://, mqtt://, amqp:// or nats://. Absent: none."),
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Ask for no token. Only on loopback.")] = False,
) -> None:
    """Run a node; without a database, with an embedded PostgreSQL in HEADGATE_HOME."""
    from headgate.config import load
    from headgate.errors import ConfigError
    from headgate.runtime.log_shipper import LogShipper
    from headgate.telemetry import logs

    if demo_broker is not None and not demo:
        raise ConfigError("--demo-broker is a part of the demo", hint="say --demo, too")
    settings = load(
        database=database,
        host=host,
        port=port,
        node_name=name,
        advertise=advertise,
        tls_cert=tls_cert,
        tls_key=tls_key,
        home=home,
        auth=False if no_auth else None,
    )
    shipper = LogShipper()
    logs.configure(settings.log, shipper.keep)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if processes == 1:
            runner.run(_up(settings, shipper, demo=demo, broker=demo_broker, search_port=port is None))
        else:
            from headgate.cli.processes import up_many

            runner.run(up_many(settings, processes, demo=demo, broker=demo_broker, search_port=port is None))


async def _up(
    settings: Settings, shipper: LogShipper, *, demo: bool | None, broker: str | None, search_port: bool
) -> None:
    from headgate.cli.demo import load_demo, unload_and_tell
    from headgate.runtime import memory
    from headgate.runtime.node import Node
    from headgate.store.secrets import load_keyring
    from headgate.telemetry import traces
    from headgate.web.app import App
    from headgate.web.auth import check_no_auth
    from headgate.web.front import Front
    from headgate.web.server import Listening, bind, make_server, url_of
    from headgate.web.tls import certificate_of

    if not settings.auth:
        check_no_auth(settings.host)
    certificate = certificate_of(settings)
    is_traced = traces.is_wanted(settings)
    stop = stop_signal()
    if settings.process is not None:
        _watch_parent(stop)
    make_home(settings.home)
    sock = bind(settings.host, settings.port, search=search_port)
    address = url_of(sock, is_tls=certificate is not None)
    advertise = settings.advertise.replace("{port}", str(sock.getsockname()[1]))
    settings = settings.model_copy(update={"advertise": advertise})
    async with contextlib.AsyncExitStack() as stack:
        front = Front(auth=settings.auth, token=lambda: homes.read_token(settings.home))
        tls = certificate.context if certificate else None
        # Before all that may take long: those who ask are told that we are not ready.
        listening = Listening(make_server(front, settings, tls), sock)
        stack.push_async_callback(listening.stop)
        if certificate is not None:
            stack.callback(asyncio.create_task(certificate.watch()).cancel)
        url = await database_url(settings, stack)
        keyring = load_keyring(settings, embedded=settings.database is None)
        node = Node(settings, url, keyring, shipper, front.waits)
        if not await started(node.prepare(), stop):
            return
        # Before the first beat: a node that beats answers.
        app = App(node, auth=settings.auth, is_tls=tls is not None)
        stack.push_async_callback(node.stop)
        stack.push_async_callback(listening.stop)  # Before the node.
        if not await started(node.begin(), stop):
            return
        front.ready(app)
        stack.callback(asyncio.create_task(app.overviews.keep()).cancel)
        if is_traced:
            begin_telemetry(settings, node, app, stack)
        if settings.database is None and settings.process is None:
            stack.callback(asyncio.create_task(_keep_database_running(node)).cancel)
        await node.starting.until_done(lambda: node.incarnations.set_address(address))
        if settings.process is None:  # Else our parent does it, once for all its nodes.
            homes.settle(settings.home, str(node.installation))
            token = await first_token(settings.home, node.tokens) if settings.auth else None
            if demo:
                await load_demo(node.registry, url, address, broker)
            elif demo is False:
                stack.callback(asyncio.create_task(unload_and_tell(node.registry, node.database, url)).cancel)
            stack.callback(homes.remove, settings.home, address)
            code = await make_code(token, node.tokens, node.sessions)
            announce(settings, address, token, code, demo=demo is True)
        memory.settle()
        await stop.wait()
        if settings.process is None:
            typer.echo(STOPPING, err=True)
        kept = await node.drain()
        if kept:
            shown = ", ".join(kept[:10]) + (f" and {len(kept) - 10} more" if len(kept) > 10 else "")
            typer.echo(f"the database is away: other nodes take {shown} when our lease is over", err=True)
    if kept:
        raise typer.Exit(1)


def begin_telemetry(settings: Settings, node: Node, app: App, stack: contextlib.AsyncExitStack) -> None:
    """Send traces and metrics to a collector."""
    from headgate.telemetry.traces import Telemetry

    sent = Telemetry(settings, node.name, str(node.installation))
    stack.push_async_callback(sent.close)
    stack.callback(asyncio.create_task(sent.run(app.collector)).cancel)


def make_home(home: Path) -> None:
    from headgate.errors import ConfigError

    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{home} cannot be used: {error.strerror}", hint="--home, or HEADGATE_HOME") from None
    if not os.access(home, os.W_OK | os.X_OK):
        raise ConfigError(f"{home} is not writable", hint="--home, or HEADGATE_HOME")


async def started(start: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Start, unless we are told to stop first: the database may be away for long."""
    starting = asyncio.create_task(start)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting], timeout=5.0)
        return False
    await starting
    return True


def stop_signal(at_once: Callable[[], None] = lambda: None) -> asyncio.Event:
    """SIGTERM and Ctrl-C drain; a second one ends at once, after this. A node that cannot stop is ended.

    A node that a script has started in the background goes on when the script gets Ctrl-C: shells have such a process
    ignore SIGINT, as `nohup` has it ignore SIGHUP, and it stays so.
    """
    stop = asyncio.Event()
    signals = 0

    def told() -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            at_once()
            os._exit(130)
        _tell(stop)

    for number in stopping_signals():
        asyncio.get_running_loop().add_signal_handler(number, told)
    return stop


def stopping_signals() -> list[signal.Signals]:
    """Those that tell us to stop: all but what the one who started us has us ignore."""
    return [number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) != signal.SIG_IGN]


def _tell(stop: asyncio.Event) -> None:
    if not stop.is_set():
        stop.set()
        last = threading.Timer(LONGEST_STOP_S, os._exit, (1,))
        last.daemon = True
        last.start()


def _watch_parent(stop: asyncio.Event) -> None:
    """Stop when our parent says so or is gone: either way the pipe that is our stdin ends."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(sys.stdin)
        _tell(stop)

    loop.add_reader(sys.stdin, ended)


async def database_url(
    settings: Settings, stack: contextlib.AsyncExitStack, server_settings: Mapping[str, str] | None = None
) -> str:
    """The database that was named, or the embedded one, which stops with its last node."""
    if settings.database is not None:
        return settings.database.get_secret_value()
    from headgate.store.embedded import EmbeddedServer

    server = await asyncio.to_thread(EmbeddedServer.join, settings.home, server_settings)
    stack.push_async_callback(asyncio.to_thread, server.leave)
    return server.url


async def _keep_database_running(node: Node) -> None:
    """An embedded server that was killed is started again: joining starts it, and we are a member already."""
    from headgate.errors import HeadgateError
    from headgate.store.embedded import EmbeddedServer

    while True:
        await asyncio.sleep(LOOK_S)
        if node.trust_left_s() <= 0.0:
            with contextlib.suppress(HeadgateError):
                again = await asyncio.to_thread(EmbeddedServer.join, node.settings.home)
                await asyncio.to_thread(again.leave)


@dataclass(frozen=True, slots=True)
class Kept:
    """The token of this home."""

    text: str
    is_new: bool  # Only then is it shown, once.


async def first_token(home: Path, tokens: Tokens) -> Kept | None:
    """A database that has never had a token gets one, kept in HEADGATE_HOME for the commands on this machine."""
    from headgate.errors import ConfigError
    from headgate.store.tokens import hash_of

    kept = homes.read_token(home)
    if kept is not None and any(not found.has_ended for found in await tokens.find([hash_of(kept)])):
        return Kept(kept, is_new=False)

    def keep(text: str) -> None:
        try:
            homes.keep_token(home, text)
        except OSError as error:
            raise ConfigError(f"{home / homes.TOKEN} cannot be written: {error.strerror}") from None

    text = await tokens.create_first("first", keep)
    return None if text is None else Kept(text, is_new=True)


async def make_code(kept: Kept | None, tokens: Tokens, sessions: Sessions) -> str | None:
    """The code of a link that signs in to the console, if there is a terminal to show it on."""
    from headgate.store.tokens import hash_of

    if kept is None or not sys.stdout.isatty():
        return None
    ids = [found.caller.id for found in await tokens.find([hash_of(kept.text)])]
    return await sessions.make_code(ids[0]) if ids and ids[0] is not None else None


def announce(
    settings: Settings,
    url: str,
    token: Kept | None,
    code: str | None,
    *,
    demo: bool,
    nodes: Mapping[str, str] | None = None,
) -> None:
    """Say where to look; of several nodes, where each is. What is not a terminal keeps what we say: no token then."""
    homes.add(settings.home, place_of(settings, url))
    file = settings.home / homes.TOKEN
    shown = settings.advertise.replace("{port}", str(urlsplit(url).port)).rstrip("/") if settings.tls_cert else ""
    lines = [f"Headgate is up: {url}"]
    lines += [f"  node     {name}  {address}" for name, address in (nodes or {}).items()]
    if not settings.auth:
        lines.append("  no token is asked for: everybody on this machine, and nobody else, may do everything")
    elif token is None:
        lines.append("  token    as created before; headgate tokens recover makes another")
    else:
        link = f"/?code={code}  (signs in once, within 10 minutes)" if code else "  (headgate console makes a link)"
        lines.append(f"  console  {shown or url}{link}")
        is_once = sys.stdout.isatty() and token.is_new
        lines.append(f"  token    {token.text}  (shown once; it is in {file})" if is_once else f"  token    in {file}")
    if demo:
        header = f'-H "Authorization: Bearer $(cat {shlex.quote(str(file))})" ' if token else ""
        lines += [
            f"  try      curl {header}-d '{ORDER}' {url}/hooks/demo-orders",
            f"  then     {_command()} sql 'SELECT * FROM demo_orders'",
            f"  letters  {_command()} dlq list demo-poison",
        ]
    typer.echo("\n".join(lines))


def place_of(settings: Settings, url: str) -> homes.Place:
    """Where commands on this machine find a node of ours."""
    return homes.Place(url, os.getpid(), str(settings.tls_cert.absolute()) if settings.tls_cert else None)


def _command() -> str:
    """How this program is called from here."""
    program = Path(sys.argv[0])
    if program.name != "headgate" or shutil.which("headgate") == str(program.absolute()):
        return "headgate"
    return os.path.relpath(program) if program.is_relative_to(Path.cwd()) else str(program)
