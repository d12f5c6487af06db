"""`quark --install-completion`: completion for bash, zsh and fish, in the shell's own user folder.

What is offered are the program's flags, its plain commands, the names of runs (asked of the program)
and files, also in a quoted sentence; the rest of the language is completed by the interactive session,
which can read it. Writing the file twice changes nothing.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools_utilities.errors import UsageError

COMMANDS = (
    "train", "finetune", "evaluate", "resume", "again", "discover", "inspect", "list", "show", "logs",
    "stop", "delete", "estimate", "doctor", "demo", "help", "explain", "why",
)  # fmt: skip
ASK = "--complete"
"""What the scripts ask the program with; no flag for people."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
PLACES = {
    "bash": ".local/share/bash-completion/completions/quark",
    "zsh": ".local/share/zsh/site-functions/_quark",
    "fish": ".config/fish/completions/quark.fish",
}
"""Shell → file below the home folder."""
NOTES = {
    "bash": "It is read by new shells where the bash-completion package is installed.",
    "zsh": "Put `fpath=(~/.local/share/zsh/site-functions $fpath)` before compinit in ~/.zshrc.",
    "fish": "It is read by new shells.",
}


def completion_script(shell: str, flags: Sequence[str]) -> str:
    """Return the completion of a shell.

    Raises:
        UsageError: a shell nobody wrote one for.
    """
    known = " ".join(flags)
    commands = " ".join(COMMANDS)
    scripts = {
        "bash": BASH.format(flags=known, commands=commands, ask=ASK),
        "zsh": ZSH.format(flags=known, commands=commands, ask=ASK),
        "fish": FISH.format(
            commands=commands,
            ask=ASK,
            flags="\n".join(f"complete -c quark -l {flag[2:]}" for flag in flags),
        ),
    }
    if shell not in scripts:
        raise UsageError(
            f"{shell}: no completion for this shell", hint=f"There are: {', '.join(scripts)}."
        )
    return scripts[shell]


def safe_names(names: Iterable[str]) -> list[str]:
    """Return the names that no shell takes for anything else: bash expands what it is offered."""
    return [name for name in names if _PLAIN_NAME.fullmatch(name)]


def install_completion(shell: str, flags: Sequence[str], home: Path | None) -> tuple[Path, str]:
    """Write a shell's completion into the home folder; returns the file and what is left to do.

    Raises:
        UsageError: an unknown shell, no home folder, or the file cannot be written.
    """
    script = completion_script(shell, flags)
    if home is None:
        raise UsageError("no home folder (HOME) to install completion in", hint="Set HOME.")
    path = home / PLACES[shell]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}", hint="Make the folder writable."
        ) from error
    return path, NOTES[shell]


BASH = """\
# Completion of quark for bash; written by `quark --install-completion bash`.
_quark() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" head="" quoted="" found i
    COMPREPLY=()
    if [[ "$word" == [\\"\\']* ]]; then # in a quoted sentence: its last word
        quoted=1
        word="${{word:1}}"
        head="${{word%"${{word##* }}"}}"
        word="${{word##* }}"
    fi
    if [[ "$word" == --* ]]; then
        mapfile -t found < <(compgen -W "{flags}" -- "$word")
    elif (( COMP_CWORD == 1 )) && [[ -z "$head" ]]; then
        mapfile -t found < <(compgen -W "{commands}" -- "$word")
    else
        mapfile -t found < <(compgen -W "$(quark {ask} runs 2>/dev/null)" -- "$word"; compgen -f -- "$word")
    fi
    if [[ -n "$quoted" ]]; then
        compopt +o filenames -o nospace 2>/dev/null
        for i in "${{!found[@]}}"; do
            [[ -d "${{found[i]}}" ]] && found[i]="${{found[i]}}/"
        done
    fi
    COMPREPLY=("${{found[@]/#/$head}}")
}}
complete -o filenames -F _quark quark
"""
ZSH = """\
#compdef quark
# Completion of quark for zsh; written by `quark --install-completion zsh`.
local first=2
[[ -n "${{compstate[quote]}}" ]] && compset -q && first=1 # in a quoted sentence: its words
if [[ "${{words[CURRENT]}}" == --* ]]; then
    compadd -- {flags}
elif (( CURRENT == first )); then
    compadd -- {commands}
else
    compadd -- ${{(f)"$(quark {ask} runs 2>/dev/null)"}}
    _files
fi
"""
FISH = """\
# Completion of quark for fish; written by `quark --install-completion fish`.
complete -c quark -n "__fish_is_first_arg" -f -a "{commands}"
complete -c quark -n "not __fish_is_first_arg" -a "(quark {ask} runs 2>/dev/null)"
{flags}
"""
