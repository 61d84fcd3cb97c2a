"""`attend`: the command line. Heavy imports are inside the commands, so that `attend --help` is fast."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows.commands import caption, check, data, export, forget, init, model, models, review, score, serve
from flows.commands import settings as settings_command
from flows.commands import workspace as workspace_commands
from flows.commands.options import (
    ConfigWorkspace,
    Json,
    Overrides,
    Preset,
    Until,
    Verify,
    WorkspaceOption,
    again,
    print_json,
    whole_number,
    with_workspace,
    workspace_folder,
)
from tasks.common.errors import AttendError, is_disk_full

if TYPE_CHECKING:
    from tasks.config.schema import Config
    from tasks.pipeline.plan import Plan, Status

app = typer.Typer(
    name="attend",
    help="Train image captioners on photographs with captions, and register them in MLflow: each picture's grid is "
    "extracted once, and decoders with attention train on the cached grids.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for command in (
    init.init,
    check.check,
    settings_command.settings,
    model.model,
    caption.caption,
    export.export,
    score.score,
    serve.serve,
    forget.forget,
):
    app.command()(command)
for name, group in (("data", data), ("models", models), ("review", review), ("workspace", workspace_commands)):
    app.add_typer(group.app, name=name)

_STATE_COLOURS = {
    "fresh": "green",
    "stale": "yellow",
    "missing": "yellow",
    "damaged": "red",
    "interrupted": "magenta",
    "running": "cyan",
}


@app.command()
def run(
    preset: Preset,
    overrides: Overrides = None,
    until: Until = "register",
    verify: Verify = False,
    workspace: ConfigWorkspace = None,
    as_json: Json = False,
) -> None:
    """Bring a captioner up to date: run only the stages that are stale."""
    from flows.configs import load

    settings = with_workspace(overrides, workspace)
    config = load(preset, settings)
    with _leading(config.machine.device) as leads:
        if not leads:
            return
        plan = _run(config, preset, settings, until, verify, quiet=as_json)
    if as_json:
        print_json([{**_as_json(item), "ran": item.stage.name in plan.ran} for item in plan.statuses])


@app.command()
def status(
    preset: Preset,
    overrides: Overrides = None,
    until: Until = "register",
    verify: Verify = False,
    workspace: ConfigWorkspace = None,
    as_json: Json = False,
) -> None:
    """Show what `attend run` would do, and why, without running anything."""
    from flows.configs import load
    from flows.pipeline import build_pipeline
    from flows.preflight import last_verdict
    from tasks.pipeline.plan import Plan

    config = load(preset, with_workspace(overrides, workspace))
    plan = Plan(build_pipeline(config), until)
    statuses = (plan.verify() if verify else plan.update()).with_running()
    if as_json:
        print_json([_as_json(item) for item in statuses])
        return
    _print_plan(statuses)
    if config.workspace.is_dir():
        typer.echo(last_verdict(config) or f"not checked yet: attend check {preset}")
    else:
        typer.echo(f"nothing has run yet: there is no workspace in {config.workspace}")


@app.command()
def demo(workspace: WorkspaceOption = Path("workspace")) -> None:
    """Generate pictures, train and register a captioner, and show some captions. Takes minutes, works offline."""
    from flows.commands.demo import show
    from flows.configs import load

    settings = with_workspace([], workspace)
    config = load("demo", settings)
    show(config, _run(config, "demo", settings, "register").by_kind)


@app.command()
def presets(
    name: Annotated[str | None, typer.Argument(help="print the YAML file of this preset")] = None,
    as_json: Json = False,
) -> None:
    """List the presets, YAML configs of known captioners, or print one."""
    import yaml

    from tasks.common.errors import suggestion
    from tasks.config.presets import presets as known

    files = known()
    if name is not None and name not in files:
        raise AttendError(f"{name}: no such preset{suggestion(name, files)}")
    values_of = {preset: yaml.safe_load(path.read_text(encoding="utf-8")) for preset, path in files.items()}
    if as_json:
        print_json(values_of if name is None else values_of[name])
    elif name is not None:
        typer.echo(files[name].read_text(encoding="utf-8"), nl=False)
    else:
        for preset, values in values_of.items():
            typer.echo(f"{preset:<24}{values.get('about', '')}\n{'':<24}[{values.get('source', '')}]")


@app.command()
def up(
    config: Annotated[
        str | None,
        typer.Argument(help="YAML file that the scheduled runs use; default: prefect.yaml is used unchanged"),
    ] = None,
    notify: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE/NAME", help="Prefect notification block for failed, crashed and missing runs, and for drift"
        ),
    ] = None,
    workspace: WorkspaceOption = Path("workspace"),
    project: Annotated[
        Path, typer.Option(help="folder that flows run in; a prefect.yaml there replaces the packaged one")
    ] = Path(),
    port: Annotated[int, typer.Option(help="port of Prefect's server", **whole_number(1, 65535))] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="port of MLflow's UI", **whole_number(1, 65535))] = 5000,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="stay in the foreground until SIGTERM or Ctrl-C")
    ] = False,
    worker_only: Annotated[
        bool,
        typer.Option(
            "--worker-only", help="only start a worker, in the foreground, for the Prefect server at PREFECT_API_URL"
        ),
    ] = False,
    systemd: Annotated[
        Literal["user", "system"] | None,
        typer.Option(help="print a systemd unit that does this after each boot, without starting anything"),
    ] = None,
) -> None:
    """Start Prefect's server, the deployments of prefect.yaml and a worker on this machine, in the background."""
    from flows.configs import load
    from flows.operations.deploy import ServiceOptions
    from flows.operations.schedules import schedule_lines
    from flows.operations.service import Service, up_until_stopped
    from flows.operations.service import up as start
    from flows.operations.systemd_unit import unit
    from flows.operations.worker import become_worker

    if config is not None:
        machine = load(config, []).machine  # an invalid config fails here, not in a scheduled run
        is_set = "workspace" in machine.model_fields_set and "://" not in machine.workspace
        if is_set and machine.folder.resolve() != workspace.resolve():
            raise AttendError(f"{config}: its workspace is {machine.folder}: add --workspace {machine.folder}")
        if Path(config).suffix in (".yaml", ".yml"):  # the flows run in the project's folder
            config = str(Path(config).expanduser().absolute())
    home = str(project.expanduser().absolute())
    options = ServiceOptions(home, str(workspace), port, mlflow_port, config or "", notify or "", worker_only)
    if systemd is not None:
        typer.echo(unit(options, systemd), nl=False)
        return
    if worker_only:
        become_worker(options)

    def started(service: Service) -> None:
        print(f"Prefect: {service.prefect}")
        if service.mlflow is not None:
            print(f"MLflow:  {service.mlflow}")
        print("\n".join(f"  {line}" for line in schedule_lines(service.api)), flush=True)

    if foreground:
        print("\n".join([*up_until_stopped(options, started), "stopped"]))
    else:
        started(start(options))
        print("stop it with `attend down`")


@app.command()
def down(workspace: WorkspaceOption = Path("workspace")) -> None:
    """Stop the servers and the worker that `attend up` started; a run in progress stops at its next checkpoint."""
    from flows.operations.service import down as stop

    for line in stop(workspace):
        typer.echo(line)
    typer.echo("stopped")


@app.command()
def page(
    preset: Annotated[
        str | None,
        typer.Argument(metavar="[PRESET_OR_YAML]", help="a preset or YAML file; default: the page of the last run"),
    ] = None,
    overrides: Overrides = None,
    workspace: ConfigWorkspace = None,
    browse: Annotated[bool, typer.Option("--open/--no-open", help="open the page in the browser")] = True,
) -> None:
    """Write and open an HTML page of a config: its pictures, stages and versions, and what the next run would do."""
    import webbrowser

    from flows.configs import load
    from flows.page.project_page import last_page, write_page
    from flows.pipeline import build_pipeline
    from tasks.pipeline.plan import Plan

    if preset is None:
        path = last_page(workspace_folder(workspace))
    else:
        config = load(preset, with_workspace(overrides, workspace))
        path = write_page(config, Plan(build_pipeline(config)).update().statuses)
    typer.echo(str(path))
    if browse:
        webbrowser.open(path.as_uri())


@app.command()
def ui(
    workspace: WorkspaceOption = Path("workspace"),
    port: Annotated[int, typer.Option(help="port to listen on", **whole_number(1, 65535))] = 5000,
) -> None:
    """Start MLflow's UI on the store that `attend run` logs to."""
    from tasks.mlflow_store.mlflow_pages import mlflow_ui

    mlflow_ui(workspace, port)


@contextmanager
def _leading(device: str) -> Iterator[bool]:
    """Yield whether this process leads, and therefore runs the pipeline.

    A follower started by torchrun does its part before this yields False.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield True
        return
    from tasks.pipeline import distributed

    with distributed.process_group(device) as leads:
        if not leads:
            distributed.follow()
        yield leads
        if leads:
            distributed.dismiss_followers()


def _run(
    config: Config, preset: str, overrides: list[str], until: str, verify: bool = False, quiet: bool = False
) -> Plan:
    """Show the plan, run it, and return it.

    config: the config of `preset` and `overrides`.
    """
    from flows.commands.story import print_beginning, print_end
    from flows.operations.local_run import run as run_stages
    from flows.operations.metrics import measured
    from flows.planned_run import planned_run, savings_message

    try:
        with (
            measured(config, until) as succeeded,
            planned_run(config, until, alone=True, verify=verify) as plan,
        ):
            before = plan.statuses
            if not quiet:
                print_beginning(config, plan.by_kind)
                _print_plan(before)
            if not plan.fresh:
                from tasks.training.precision import computes_on  # imports torch, which the stages need anyway

                computes = computes_on(config, before)
                if computes is not None and not quiet:
                    typer.echo(computes)
                run_stages(config, plan, preset, overrides, quiet)
            else:
                if until == "evaluate":  # MLflow may have lost it, or be another store
                    from flows.unregistered import log_evaluation

                    log_evaluation(config, plan)
                if not quiet:
                    typer.echo("nothing to do: every stage is fresh")
            succeeded.append(plan)
    except KeyboardInterrupt:  # caught here because Typer would end without a message
        _fail("stopped: run the same command again to continue", 130)
    if not quiet:
        saved = savings_message(before, plan.by_kind)
        typer.echo(f"up to date{f'; {saved}' if saved else ''}")
        print_end(config, plan.by_kind, again("run", preset, overrides))
    return plan


def _print_plan(statuses: list[Status]) -> None:
    """Print each stage with its state and the reasons for it."""
    width = max(len(item.stage.name) for item in statuses)
    for item in statuses:
        typer.secho(f"{item.state:<12}", fg=_STATE_COLOURS[item.state], nl=False)
        typer.echo(f"{item.stage.name:<{width}} {item.why[0] if item.why else ''}")
        for reason in item.why[1:]:
            typer.echo(f"{'':<{width + 13}}{reason}")


def _as_json(item: Status) -> dict[str, Any]:
    return {"stage": item.stage.name, "state": item.state, "why": item.why, "key": item.key}


def main() -> None:
    """Run `attend`. A user's mistake ends in one line and exit code 1, a bug in its traceback."""
    from tasks.common.log import show_log

    show_log()
    try:
        app()
    except AttendError as error:
        _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if is_disk_full(error):
            path = getattr(error, "filename", None) or "the workspace"
            _fail(f"{path}: the disk is full: make room and run again; what is done is kept")
        if type(error).__module__.startswith(("mlflow.", "prefect.")):
            _fail(_original_message(error) or f"{type(error).__module__.split('.')[0]}: {error}")
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            _fail(f"{error.filename}: {error.strerror}: use another folder, or change its permissions")
        raise


def _original_message(error: BaseException) -> str | None:
    """Return the message of the AttendError that this error hides; None if there is none.

    MLflow and Prefect may raise errors of their own while recording a run that an AttendError ended.
    """
    while (earlier := error.__cause__ or error.__context__) is not None:
        if isinstance(earlier, AttendError):
            return str(earlier)
        error = earlier
    return None


def _fail(message: str, code: int = 1) -> None:
    """Print a message to standard error, on one line, and exit."""
    print(f"attend: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
