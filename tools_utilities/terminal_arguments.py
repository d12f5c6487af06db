"""The arguments of `quark`: a sentence with a few flags around it.

A command line made of words is not a list of options, so no option parser is used: an argument is
a flag only if it is exactly one of the flags below; one holding a blank never is. `explain` takes
what follows it as it is, also when it begins with `-`.
"""

import re
from collections.abc import Sequence

import msgspec

from tools_utilities.errors import UsageError

SWITCHES = {
    "--yes": "yes",
    "--plan": "plan",
    "--json": "json",
    "--no-input": "no_input",
    "--verbose": "verbose",
    "--help": "help",
    "--version": "version",
}
VALUED = ("--override", "--groups", "--bucket", "--out", "--from-plan", "--install-completion")
_OVERRIDE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\s*=")

HELP = """\
quark turns one sentence into a training run on sharded data.

usage:
  quark "SENTENCE" [flags]        read it, show the plan, run it
  quark explain "SENTENCE"        show how a sentence is read; touches nothing
  quark help [WORD]               what can be said
  quark why SETTING [RUN]         where a value of a run came from

examples:
  quark "train quark with data/datasets/alphagenome"
  quark "train quark with s3://bucket/set for 3 epochs" --override lr=3e-4
  quark "what datasets are under s3://bucket/data"
  quark resume
  quark list · quark show fox-12 · quark stop fox-12 · quark doctor · quark demo

flags:
  --override KEY=VALUE …   set a setting (several may follow); wins over all
  --groups 1,3-5           take these shard groups (also: all, largest)
  --bucket NAME            bucket or store URI, as --override bucket=NAME
  --plan                   show the plan and stop; nothing is written or started
  --out FILE               with --plan: keep the plan in a file
  --from-plan FILE         carry out a kept plan exactly, or refuse
  --yes                    do not ask before starting
  --no-input               never ask; what needs an answer ends with exit code 2
  --json                   stdout holds JSON only; a run writes one event a line
  --verbose                more detail, and tracebacks of errors
  --install-completion S   install completion for a shell: bash, zsh or fish
  --version                print the version

exit codes: 0 ok · 1 run failed · 2 usage or input needed · 3 data not found
            4 access · 5 nothing to claim · 6 data changed
            130 interrupted · 143 terminated
"""


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """The command line, taken apart."""

    words: tuple[str, ...] = ()
    """What is left after the flags: the sentence, in one argument or many."""
    overrides: tuple[str, ...] = ()
    """`key=value` texts in the order given."""
    groups: str | None = None
    out: str | None = None
    """Where `--plan` keeps the plan."""
    from_plan: str | None = None
    """A kept plan to carry out."""
    install_completion: str | None = None
    """The shell to install completion for."""
    yes: bool = False
    plan: bool = False
    json: bool = False
    no_input: bool = False
    verbose: bool = False
    help: bool = False
    version: bool = False


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Return the command line taken apart.

    Raises:
        UsageError: a flag nobody knows (the hint names the nearest), or one without its value.
    """
    words: list[str] = []
    valued: dict[str, list[str]] = {flag: [] for flag in VALUED}
    switches: dict[str, bool] = {}
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        flag, equals, value = argument.partition("=")
        literal = words == ["explain"] and argument not in SWITCHES
        if argument == "--" and not literal:
            words.extend(rest)
            break
        if literal or not argument.startswith("-") or re.search(r"\s", flag):
            words.append(argument)
        elif argument in SWITCHES:
            switches[SWITCHES[argument]] = True
        elif flag in VALUED:
            valued[flag].append(value if equals else _next_value(flag, rest))
            while flag == "--override" and rest and _OVERRIDE.match(rest[0]):
                valued[flag].append(rest.pop(0))
        else:
            raise _unknown(argument)
    buckets = [f"bucket={bucket}" for bucket in valued["--bucket"]]
    return Arguments(
        words=tuple(words),
        overrides=(*buckets, *valued["--override"]),
        groups=_last(valued["--groups"]),
        out=_last(valued["--out"]),
        from_plan=_last(valued["--from-plan"]),
        install_completion=_last(valued["--install-completion"]),
        **switches,
    )


def _last(values: list[str]) -> str | None:
    return values[-1] if values else None


def _next_value(flag: str, rest: list[str]) -> str:
    if not rest or rest[0] in SWITCHES or rest[0] in VALUED:
        raise UsageError(f"{flag}: needs a value", hint=f"`quark --help` shows how {flag} is used.")
    return rest.pop(0)


def _unknown(argument: str) -> UsageError:
    from rapidfuzz import process
    from rapidfuzz.distance import OSA

    flag = argument.partition("=")[0]
    near = process.extractOne(
        flag, [*SWITCHES, *VALUED], scorer=OSA.distance, score_cutoff=max(2, len(flag) // 3)
    )
    hint = f"Did you mean {near[0]}?" if near else "`quark --help` lists the flags."
    return UsageError(f"{argument}: no such flag", hint=hint, flag=argument)
