"""``hwq list``, ``run`` and ``sweep``: workloads, their parameters, and arguments for pytest.

The options depend on the workload, so its module is imported only if an option is not the command's
own, or for help.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from pytest_hwqueue.data.errors import meant, nearest
from pytest_hwqueue.options.of_commands import (
    PASSED_ON,
    PassesOn,
    given_options,
    output,
    with_options,
)
from pytest_hwqueue.options.options import BY_NAME, PRIORITIES
from pytest_hwqueue.parts.workloads.registry import WORKLOADS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from pytest_hwqueue.parts.workloads.workload import Workload


_VERBOSE = "pytest_hwqueue.options.measuring.verbose"


def plugin_arguments(
    given: Mapping[str, Any], defaults: Mapping[str, str] | None = None
) -> list[str]:
    """Turn a command's options into the plugin's.

    Args:
        given: values by the options' fields; None, an empty tuple or False was not given.
        defaults: the command's own, by the options' names. They yield to the environment, which
            the plugin reads itself.

    """
    named = ((BY_NAME[name], text) for name, text in (defaults or {}).items())
    own = {option.field: text for option, text in named if option.variable not in os.environ}
    own |= {name: value for name, value in given.items() if value not in (None, (), False)}
    return [
        option.command_line + f"={each}" * (not option.flag)
        for option, values in given_options(own)
        for each in values
    ]


def run_suite(
    arguments: Sequence[str],
    *,
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run pytest on the suite; return its exit status.

    Args:
        arguments: the plugin's options, and pytest's own.
        before: a command that runs pytest's.
        environment: variables to add to this process's.

    """
    from pytest_hwqueue.options.suite import pytest_command, pytest_environment, run_pytest

    meta = click.get_current_context().meta
    extra = meta[PASSED_ON]
    shown = ["-v"] if meta[_VERBOSE] else []
    command = pytest_command([*arguments, *shown], extra)
    around = {**pytest_environment(plugins=bool(extra)), **(environment or {})}
    return run_pytest([*before, *command], around)


class WorkloadName(click.ParamType):  # type: ignore[type-arg]
    """The name of a workload, or words of ``also``, with commas; an error lists all of them."""

    name = "workload"

    def __init__(self, *also: str) -> None:
        self._also = also

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Look the name up, also among those that other packages add."""
        if value in WORKLOADS or {*value.split(",")} <= {*self._also}:
            return str(value)
        known = nearest(str(value), self._choice().choices)
        self.fail(f"there is no workload {value}; {known}", param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the name in the shell."""
        return self._choice().shell_complete(ctx, param, incomplete)

    def _choice(self) -> click.Choice[str]:
        return click.Choice([*self._also, *WORKLOADS])


_NAMED = "pytest_hwqueue.options.measuring.named"
_OPTIONS = "pytest_hwqueue.options.measuring.parameter_options"
_GIVEN = "pytest_hwqueue.options.measuring.parameters"
_HINT = (
    "a workload's parameters are options where it is named alone (`hwq run NAME --help` lists "
    "them); elsewhere use --param NAME=VALUE"
)


class MeasuringWorkloads(PassesOn):
    """A command that takes workloads, ``-v`` and, as options, the first one's parameters."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        verbose = click.Option(
            ["-v", "--verbose"], is_flag=True, expose_value=False, callback=_note_verbose,
            help="print every figure, not one line for each cell",
        )  # fmt: skip
        self.params.append(verbose)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find the workload and, if needed, its parameters; then parse."""
        before = args[: args.index("--")] if "--" in args else args
        name, needed = self._look_ahead(ctx, before)
        ctx.meta[_GIVEN] = {}
        if name is not None and needed:
            ctx.meta[_NAMED] = name
            taken = {spelt for option in self.get_params(ctx) for spelt in option.opts}
            ctx.meta[_OPTIONS] = _options(name, taken)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            options = ctx.meta.get(_OPTIONS)
            more = _HINT
            if options is not None:
                known = ", ".join(option.opts[0] for option in options)
                more = f"the parameters of {name} are {known}"
            near = meant(error.option_name, error.possibilities or ())
            raise click.UsageError(
                f"No such option {error.option_name}; {near}{more}", ctx
            ) from None

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own options, and the workload's."""
        return [*super().get_params(ctx), *ctx.meta.get(_OPTIONS, ())]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Format the workload's parameters before the command's own options."""
        if _OPTIONS in ctx.meta:
            from pytest_hwqueue.options.listing import parameters_of

            workload = _class(ctx.meta[_NAMED])
            spelt = {option.opts[0] for option in ctx.meta[_OPTIONS]}
            lines = []
            for each in parameters_of(workload):
                option = _spelt(each.name)
                # One that is called like an option of the command is set in the longer way.
                start = option if option in spelt else f"--param {each.name}="
                lines.append((f"{start} {each.type}", f"{each.description} ({each.by_size})"))
            with formatter.section(f"Parameters of {workload.name}"):
                formatter.write_dl(lines)
        super().format_options(ctx, formatter)

    def _look_ahead(self, ctx: click.Context, args: Sequence[str]) -> tuple[str | None, bool]:
        """Return the first workload named, and whether its parameters are needed."""
        parser = self.make_parser(ctx)
        parser.ignore_unknown_options = True
        given, rest, order = parser.parse_args([*args])
        # An argument that is not there has no string: click's own sign, or None.
        texts = [given.get(each.name) for each in self.params if isinstance(each, click.Argument)]
        several = [each if isinstance(each, tuple) else (each,) for each in texts]
        words = [word for each in (*several, rest) for word in each if isinstance(word, str)]
        named = next((word for word in words if word in WORKLOADS), None)
        unknown = any(word.startswith("--") for word in words)
        return named, unknown or self.get_help_option(ctx) in order


def with_parameters(names: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    """Return a command's options with the workload's parameters among its ``param``.

    Raises:
        click.UsageError: if there are parameters and more than one workload, or a value is not
            valid.

    """
    meta = click.get_current_context().meta
    own: dict[str, str] = meta[_GIVEN]
    if not own:
        return given
    name = meta[_NAMED]
    if tuple(names) != (name,):
        first, value = next(iter(own.items()))
        raise click.UsageError(
            f"{_spelt(first)} is a parameter of {name}; with several workloads say whose it is: "
            f"--param {name}.{first}={value}"
        )
    from pytest_hwqueue.parts.workloads.workload import parameters_for

    parameters_for(_class(name), "full", own)
    # Behind those of --param: what is said in the shorter way wins.
    named = tuple(f"{name}.{parameter}={value}" for parameter, value in own.items())
    return {**given, "param": (*(given["param"] or ()), *named)}


def _options(name: str, taken: Collection[str]) -> list[click.Option]:
    options = []
    for parameter, field in _class(name).parameter_model.model_fields.items():
        if _spelt(parameter) in taken:
            continue
        # A flag may be given a value too: --async-op, --async-op=false.
        is_bool = field.annotation is bool
        flag: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if is_bool else {}
        options.append(
            # Hidden: they stand in a section of their own, with their defaults by size.
            click.Option(
                [_spelt(parameter), f"of_workload_{parameter}"],
                callback=_keep, expose_value=False, hidden=True, **flag,
            )
        )  # fmt: skip
    return options


def _note_verbose(ctx: click.Context, _: click.Parameter, verbose: bool) -> None:
    ctx.meta[_VERBOSE] = verbose


def _keep(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        assert option.name is not None
        ctx.meta[_GIVEN][option.name.removeprefix("of_workload_")] = value


def _spelt(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


def _class(name: str) -> type[Workload]:
    from pytest_hwqueue.parts.workloads.registry import workload_class

    return workload_class(name)


@click.command("list")
@click.option("--verbose", "-v", is_flag=True,
              help="also show everything that each declares, with its parameters")  # fmt: skip
def list_workloads(verbose: bool) -> None:
    """List the workloads: what they measure, and on how many streams.

    With --verbose, also show whether a workload needs several processes, what its ratios mean, and
    its parameters with types, bounds and defaults at each size.
    """
    from pytest_hwqueue.options.listing import workloads_document

    output(workloads_document(verbose=verbose))


@with_options(without=("workload",))
@click.command(cls=MeasuringWorkloads)
@click.argument(
    "names", nargs=-1, required=True, type=WorkloadName(*PRIORITIES), metavar="NAME|P0..."
)
def run(names: tuple[str, ...], **given: Any) -> int:
    """Measure workloads by name, or all of P0, P1, P2 or P3.

    `hwq list` names them. The parameters of a single workload are options too: `hwq run
    hetero_kernels --mm-dim 2048` (`hwq run NAME --help` lists them).
    """
    marks = [name for name in names if name not in WORKLOADS]
    if marks and (len(marks) < len(names) or given["priority"]):
        raise click.UsageError("name workloads or priority marks, not both")
    given = with_parameters(names, given)
    kind = "priority" if marks else "workload"
    return run_suite(plugin_arguments({**given, kind: ",".join(names)}))


ALL = "all"
_DEFAULTS = {"streams": "1,2,4,8,16"}
# Reasons of what is skipped are shown, and a file that cannot be read costs no other's cells.
_PYTEST = ("-rs", "--continue-on-collection-errors")


@with_options(without=("workload", "scaling"), defaults=_DEFAULTS)
@click.command(cls=MeasuringWorkloads)
@click.argument("name", type=WorkloadName(ALL), metavar="NAME|all")
def sweep(name: str, **given: Any) -> int:
    """Measure workloads over several numbers of streams.

    Numbers outside a workload's range are skipped, with the reason. A failing cell costs no other
    its result. Ends with a scaling table per workload, and a plot next to the records.

    What failed or is missing is measured by the same command with `-- -k WORKLOAD` at its end.
    """
    given = {**with_parameters([name], given), "scaling": True}
    defaults = dict(_DEFAULTS)
    if name == ALL:
        # Every workload has a mark. Scenarios are no workloads, so they stay out.
        defaults["priority"] = ",".join(PRIORITIES)
    else:
        given["workload"] = name
    return run_suite([*plugin_arguments(given, defaults), *_PYTEST])
