"""`quark --install-completion`: completion for bash, zsh and fish, in the shell's own user folder.

What is offered are the program's flags, its plain commands and files: a sentence is completed by the
interactive session, which can read it. Writing the file twice changes nothing.
"""

from collections.abc import Sequence
from pathlib import Path

from tools_utilities.errors import UsageError

COMMANDS = (
    "train", "finetune", "evaluate", "resume", "again", "discover", "inspect", "list", "show", "logs",
    "stop", "delete", "estimate", "doctor", "demo", "help", "explain", "why",
)  # fmt: skip
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
        "bash": BASH.format(flags=known, commands=commands),
        "zsh": ZSH.format(flags=known, commands=commands),
        "fish": FISH.format(
            commands=commands,
            flags="\n".join(f"complete -c quark -l {flag[2:]}" for flag in flags),
        ),
    }
    if shell not in scripts:
        raise UsageError(
            f"{shell}: no completion for this shell", hint=f"There are: {', '.join(scripts)}."
        )
    return scripts[shell]


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
    local word="${{COMP_WORDS[COMP_CWORD]}}"
    if [[ "$word" == --* ]]; then
        COMPREPLY=( $(compgen -W "{flags}" -- "$word") )
    elif (( COMP_CWORD == 1 )); then
        COMPREPLY=( $(compgen -W "{commands}" -- "$word") )
    else
        COMPREPLY=( $(compgen -f -- "$word") )
    fi
}}
complete -o filenames -F _quark quark
"""
ZSH = """\
#compdef quark
# Completion of quark for zsh; written by `quark --install-completion zsh`.
if [[ "${{words[CURRENT]}}" == --* ]]; then
    compadd -- {flags}
elif (( CURRENT == 2 )); then
    compadd -- {commands}
else
    _files
fi
"""
FISH = """\
# Completion of quark for fish; written by `quark --install-completion fish`.
complete -c quark -n "__fish_is_first_arg" -a "{commands}"
{flags}
"""
