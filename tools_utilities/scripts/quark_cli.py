"""The program: arguments → sentence → reading → command; errors become one line, a hint, a code.

Sits on top of every other folder, alone in `tools_utilities` to do so. Imports little at the start:
`quark --help` and `quark explain` never load what only a run needs.
"""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if not __package__ and str(Path(__file__).parents[2]) not in sys.path:
    # Run by path from a checkout that is not installed: the packages lie beside this folder.
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tools_utilities.console import Console, make_console
from tools_utilities.errors import QuarkError, UsageError
from tools_utilities.open_files import raise_open_file_limit
from tools_utilities.process_environment import environment_now
from tools_utilities.redaction import KNOWN, guard_process
from tools_utilities.terminal_arguments import HELP, SWITCHES, VALUED, Arguments, parse_arguments

INTERRUPTED = 130
DISTRIBUTION = "quark-launcher"
PLANNED = ("train", "finetune", "again", "evaluate")
"""The intents that make a plan."""


def main() -> None:
    """Run the program on the command line and exit with its code."""
    KNOWN.add_environment(environment_now())
    code = run_program(sys.argv[1:])
    if code == INTERRUPTED:
        # Threads that wait for a store would hold the exit until their requests end.
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(code)
    raise SystemExit(code)


def run_program(argv: Sequence[str]) -> int:
    """Run one command line; returns the exit code. Prints every error itself."""
    if list(argv) == ["--complete", "runs"]:
        return _complete()
    for argument in argv:
        KNOWN.add_typed(argument)
    raise_open_file_limit()
    console = make_console()
    try:
        arguments = parse_arguments(argv)
        console = make_console(
            no_input=arguments.no_input,
            json=arguments.json,
            yes=arguments.yes,
            verbose=arguments.verbose,
        )
    except QuarkError as error:
        return console.with_flags(json="--json" in argv).error(error)
    return _guarded(lambda: _run(arguments, argv, console), console)


def _complete() -> int:
    """Print the names of the runs for a shell's completion, which has no use for errors."""
    from knowledge_hub.session import run_names
    from tools_utilities.settings import load_settings
    from tools_utilities.shell_completion import safe_names

    with contextlib.suppress(QuarkError, OSError):
        names = run_names(load_settings(start_dir=Path.cwd()))
        make_console().result(safe_names(names))
    return 0


def _guarded(act: Callable[[], int], console: Console) -> int:
    try:
        return act()
    except KeyboardInterrupt:
        console.note("", "Interrupted; nothing was started.")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the border of the program: told, never swallowed
        return console.error(error)


def _run(arguments: Arguments, argv: Sequence[str], console: Console) -> int:
    if arguments.help:
        lines = HELP.splitlines()
        console.result(lines, {"schema": 1, "help": lines})
        return 0
    if arguments.version:
        console.result([f"quark {_version()}"], {"schema": 1, "version": _version()})
        return 0
    if arguments.install_completion is not None:
        return _install_completion(arguments.install_completion, console)
    if arguments.from_plan is not None:
        return _from_plan(arguments, argv, console)
    if not arguments.words:
        return _session(arguments, console)
    return _say(arguments, argv, console)


def _say(arguments: Arguments, argv: Sequence[str], console: Console) -> int:
    if arguments.words[0] == "explain" and len(arguments.words) > 1:
        return _explain(arguments, console)
    asked = " ".join(arguments.words)
    if asked.split()[:1] == ["why"]:
        return _why(asked, console)
    return _carry_out(arguments, argv, console)


def _install_completion(shell: str, console: Console) -> int:
    from tools_utilities.settings import read_environment
    from tools_utilities.shell_completion import install_completion

    path, note = install_completion(shell, (*SWITCHES, *VALUED), read_environment().home)
    console.result([f"installed {path}"], {"schema": 1, "installed": str(path)})
    console.note(note)
    return 0


def _from_plan(arguments: Arguments, argv: Sequence[str], console: Console) -> int:
    """Carry out a kept plan; nothing may be said beside it, since it is carried out exactly."""
    if arguments.words or arguments.overrides or arguments.groups or arguments.out:
        raise UsageError(
            "--from-plan carries the plan out as it is: no sentence and no setting beside it",
            hint="Make a new plan: --plan --out FILE.",
        )
    resources = _resources(arguments, (), argv, console)
    return int(resources.run_saved_plan(Path(str(arguments.from_plan))))


def _why(asked: str, console: Console) -> int:
    from knowledge_hub.carrying_out import answer_why
    from resource_manager.manager import ResourceManager

    return answer_why(asked, ResourceManager(console=console))


def _session(arguments: Arguments, console: Console) -> int:
    """Carry out sentences typed at the terminal until it ends; off a terminal show the help."""
    if not console.can_ask:
        console.note(*HELP.splitlines())
        return UsageError.exit_code
    console.note("Type a sentence, or `help`; Ctrl-D leaves.")

    def run(line: str) -> int:
        return _run_line(line, arguments, console)

    guard_process()
    if console.can_animate:
        from knowledge_hub.session import run_session

        return run_session(console, run, Path.cwd())
    while (line := console.read_line("quark> ")) is not None:
        words = line.strip()
        if words in ("exit", "quit"):
            break
        if words:
            run(words)
    return 0


def _run_line(line: str, session: Arguments, console: Console) -> int:
    """Carry out a line of the session; the program's flags may stand beside its sentence."""
    from tools_utilities.session_line import line_arguments

    KNOWN.add_typed(line)
    try:
        arguments = line_arguments(line, session)
    except QuarkError as error:
        return console.error(error)
    if not (arguments.words or arguments.help or arguments.version or arguments.from_plan):
        return console.error(UsageError("flags without a sentence", hint="Type both in one line."))
    own = console.with_flags(
        no_input=arguments.no_input,
        json=arguments.json,
        yes=arguments.yes,
        verbose=arguments.verbose,
    )
    return _guarded(lambda: _run(arguments, arguments.words, own), own)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "(not installed)"


def _sentence(words: Sequence[str], overrides: Sequence[str]) -> str:
    from knowledge_hub.sentence import join_arguments

    flags = [part for override in overrides for part in ("--override", override)]
    return join_arguments([*words, *flags])


def _aliases() -> dict[str, str]:
    from tools_utilities.settings import load_settings

    return load_settings(start_dir=Path.cwd()).aliases


def _explain(arguments: Arguments, console: Console) -> int:
    """Show how a sentence is read; touches nothing but quark.yaml, for aliases."""
    from knowledge_hub.hub import KnowledgeHub

    sentence = _sentence(arguments.words[1:], arguments.overrides)
    return _show_reading(KnowledgeHub().read(sentence, aliases=_aliases()), console)


def _show_reading(reading: Any, console: Console) -> int:
    from tools_utilities.reading_dialogue import drawn

    lines = drawn(reading, width=console.result_width, draw=console.draws_blocks)
    console.result(lines, reading.to_dict())
    return 0


def _carry_out(arguments: Arguments, argv: Sequence[str], console: Console) -> int:
    with _shown_at_once("reading …", console):
        from knowledge_hub.hub import KnowledgeHub
        from tools_utilities.reading_dialogue import settle

        aliases = _aliases()
        hub = KnowledgeHub()

    def read(sentence: str) -> Any:
        return hub.read(sentence, aliases=aliases)

    sentence = _sentence(arguments.words, arguments.overrides)
    if not sentence.strip():
        raise UsageError("an empty sentence", hint="`quark --help` shows what can be said.")
    reading = read(sentence)
    if reading.is_explanation:
        return _show_reading(reading, console)
    reading, ignored = settle(reading, read, console, _offered)
    for warning in reading.warnings:
        console.warn(warning)
    return _run_intent(reading, ignored, arguments, argv, console)


def _shown_at_once(what: str, console: Console) -> contextlib.AbstractContextManager[None]:
    """Return what shows, at a terminal, that the program is there while it loads its parts."""
    return console.working(what) if console.can_animate else contextlib.nullcontext()


def _offered(slot: str, intent: str | None) -> Any:
    from resource_manager.answers import offered_answers

    return offered_answers(slot, intent, Path.cwd())


def _run_intent(
    reading: Any,
    ignored: tuple[str, ...],
    arguments: Arguments,
    argv: Sequence[str],
    console: Console,
) -> int:
    from knowledge_hub.carrying_out import carry_out

    planned = arguments.plan or reading.slots.get("plan_only")
    if arguments.out is not None and not (planned and reading.intent in PLANNED):
        raise UsageError(
            "--out keeps the plan of a run that is only shown",
            hint='quark "train …" --plan --out plan.json',
        )
    resources = _resources(arguments, ignored, argv, console)
    return carry_out(reading, resources, plan_only=arguments.plan)


def _resources(
    arguments: Arguments, ignored: Sequence[str], argv: Sequence[str], console: Console
) -> Any:
    guard_process()
    with _shown_at_once("looking …", console):
        from resource_manager.manager import CommandOptions, ResourceManager

    options = CommandOptions(
        groups=arguments.groups,
        plan_only=arguments.plan,
        plan_file=None if arguments.out is None else Path(arguments.out),
        command=shlex.join(["quark", *argv]),
        notes=tuple(f"ignored: {word}" for word in ignored),
    )
    return ResourceManager(console=console, options=options)


if __name__ == "__main__":
    main()
