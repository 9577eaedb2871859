"""``aaa worker``: a long-running process that serves an app's runs, as in a pod.

SIGTERM drains and exits with 0. A tool that could not be stopped, or a hung event loop, makes the
process useless: it ends with 70, so that whatever started it starts another (G9, G12).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from aaa.cli import exits, loop
from aaa.cli.options import StoreOption
from aaa.errors import ConfigError

if TYPE_CHECKING:
    from aaa.runtime import Engine

log = logging.getLogger("aaa.worker")

CHECK_S: Final = 0.5
#: After the drain's deadline the process has so long to release what it holds, then it leaves. A
#: container's grace period has to be longer than the drain by a little more.
LEAVE_S: Final = 12.0


def worker(
    app: Annotated[
        str,
        typer.Option("--app", metavar="MODULE:ATTRIBUTE", help="What it serves.", envvar="AAA_APP"),
    ],
    store: StoreOption = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Calls that it runs at a time.")
    ] = 64,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Name of this process; a restarted one needs another.  [default: made up]",
            show_default=False,
        ),
    ] = None,
    scope: Annotated[
        str,
        typer.Option(
            "--scope",
            metavar="NAME",
            envvar="AAA_SCOPE",
            help="Serve runs of this scope only; 'aaa show' names a run's.",
        ),
    ] = "local",
    policy: Annotated[
        list[Path] | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="ToolPolicies that bind every run of this worker, whatever they select; repeatable.  "
            "A run of 'aaa run' needs those that it was begun with.",
            show_default=False,
        ),
    ] = None,
    drain_timeout_s: Annotated[
        float,
        typer.Option("--drain-timeout-s", min=0, help="Seconds that calls get to end at SIGTERM."),
    ] = 30.0,
    worker_ttl_s: Annotated[
        float,
        typer.Option("--worker-ttl-s", min=1, help="Seconds until a silent worker is replaced."),
    ] = 15.0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a store whose settings can lose data.")
    ] = False,
    log_format: Annotated[
        str, typer.Option("--log-format", metavar="FORMAT", help="plain or json, on stderr.")
    ] = "plain",
) -> int:
    """Serve an app's runs until SIGTERM.

    SIGTERM lets calls in flight finish first; once more ends at once. Exits with 0 after draining; with 70 when it must be replaced, because a tool could not be
    stopped or blocked the process.

    \b
    Example:
      aaa worker --app agent:app --store redis://localhost:6379/0 --concurrency 64
    """
    from aaa.cli import logs, signals

    if log_format not in ("plain", "json"):
        raise ConfigError(f"--log-format must be plain or json, not {log_format!r}")
    logs.to_stderr(form=log_format)
    signals.leave_at_once()
    return loop.run(
        _serve(
            app,
            store,
            policy or [],
            strict=strict,
            worker=name,
            scope=scope,
            concurrency=concurrency,
            drain_timeout_s=drain_timeout_s,
            worker_ttl_s=worker_ttl_s,
        )
    )


async def _serve(
    app_name: str,
    store_url: str | None,
    policy_files: list[Path],
    *,
    strict: bool,
    worker: str | None,
    scope: str,
    concurrency: int,
    drain_timeout_s: float,
    worker_ttl_s: float,
) -> int:
    from aaa.app import load_app
    from aaa.cli import unmatched
    from aaa.cli.pod import Pod
    from aaa.cli.scope import served
    from aaa.cli.signals import blocked
    from aaa.cli.stores import bounded_open, make, url_of
    from aaa.runtime import Engine
    from aaa.store.address import shown
    from aaa.telemetry import configure_from_environment, names, tell

    with Pod.from_environment() as pod:
        worker = worker or pod.worker_name()
        configure_from_environment(worker=worker)
        url = url_of(store_url)
        scope, rules = served(scope, policy_files)
        app = load_app(app_name, folder=Path.cwd())
        for sentence in unmatched.warnings(rules, app, name=app_name):
            tell(log, names.LOG_UNMATCHED, "%s", sentence)
        engine = Engine(
            make(url),
            worker=worker,
            app=scope,
            concurrency=concurrency,
            worker_ttl_s=worker_ttl_s,
            drain_timeout_s=drain_timeout_s,
            loop_block_limit_s=pod.loop_block_limit_s(worker_ttl_s),
            on_blocked=blocked,
        )
        serves = app.attach(engine, policies=rules)
        pod.attach(engine)
        await bounded_open(engine.store, url, strict=strict)
        await engine.start()
        name, message = engine.worker, "worker %s serves %s from %s"
        tell(log, names.LOG_SERVES, message, name, serves, shown(url), worker=name)
        async with pod.following():
            return await _until_asked(engine)


async def _until_asked(engine: Engine) -> int:
    """Serve until a signal, or a tool that cannot be stopped, ends it; then drain."""
    import asyncio

    from aaa.cli.signals import Interrupts, leave
    from aaa.telemetry import names, tell

    name = engine.worker
    with Interrupts(on_first=_draining, on_second=lambda: None) as heard:
        stopping = asyncio.ensure_future(heard.asked.wait())
        while not stopping.done() and not engine.unstoppable:
            await asyncio.wait({stopping}, timeout=CHECK_S)
        stopping.cancel()
        if engine.unstoppable:
            message = "tool %s could not be stopped; draining, to be replaced"
            tools = ", ".join(engine.unstoppable)
            tell(log, names.LOG_UNSTOPPABLE, message, tools, worker=name)
        try:
            await asyncio.wait_for(engine.stop(), engine.drain_timeout_s + LEAVE_S)
        except TimeoutError:
            message = "draining did not end: leaving without giving everything back"
            tell(log, names.LOG_NOT_GIVEN_BACK, message, worker=name)
            leave(exits.BROKEN)
    tell(log, names.LOG_DRAINED, "drained", worker=name)
    if engine.unstoppable:
        leave(exits.BROKEN)
    return exits.DONE


def _draining(what: str) -> None:
    from aaa.telemetry import names, tell

    message = "%s: claiming nothing more, letting calls finish; once more ends at once"
    tell(log, names.LOG_DRAINING, message, what)
